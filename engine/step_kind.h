// The two kinds of step: over the tokens of prompts, or over one new token of each sequence.
#pragma once

namespace fut {

enum class StepKind { Prefill, Decode };

// Prompts are cut into steps at multiples of this: what a token of an INT4 cache sees of earlier
// ones depends on where its step begins, so whoever runs a model cuts alike.
inline constexpr int kDefaultPrefillChunk = 512;

}  // namespace fut
