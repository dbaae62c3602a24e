// The two kinds of step: over the tokens of prompts, or over one new token of each sequence.
#pragma once

namespace fut {

enum class StepKind { Prefill, Decode };

}  // namespace fut
