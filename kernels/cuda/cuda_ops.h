// The ops of ops.h on the GPU: launchers, each with the op's arguments and what the device's ops share.
// They check the contract, launch and return; they do not wait, so they may be recorded. Pointers are
// memory of the current device. Includes no CUDA header.
#pragma once

#include "kernels/cuda/launch_context.h"
#include "kernels/ops.h"
#include "kernels/step_advance.h"

namespace fut::cuda {

// The same bits as the CPU's: all but one rounding is exact, and that is the same function.
void expand(const ExpandArgs& a, LaunchContext& context);
void embed(const EmbedArgs& a, LaunchContext& context);

// The plain column of ops.h, float32 throughout, is the CPU's alone: Usage.
void qkv_rope_append(const QkvRopeAppendArgs& a, LaunchContext& context);
void attention(const AttentionArgs& a, LaunchContext& context);
void linear_residual(const LinearResidualArgs& a, LaunchContext& context);
void gate_up_swiglu(const GateUpSwigluArgs& a, LaunchContext& context);
void lm_head(const LmHeadArgs& a, LaunchContext& context);

void sample(const SampleArgs& a, LaunchContext& context);
void advance(const StepState& state, LaunchContext& context);

}  // namespace fut::cuda
