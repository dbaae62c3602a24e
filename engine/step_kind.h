// The two kinds of step: over the tokens of prompts, or over one new token of each sequence.
#pragma once

namespace fut {

enum class StepKind { Prefill, Decode };

// Prompts are cut into steps at multiples of this: what a token of an INT4 cache sees of earlier
// ones depends on where its step begins, so whoever runs a model cuts alike. As many as keep a GPU's
// multiprocessors busy in each product of a layer: at 512 they lose a sixth of their rate.
inline constexpr int kDefaultPrefillChunk = 2048;

}  // namespace fut
