// The ops whose weights lie row after row (BF16, E4M3, INT8) on the GPU: launchers behind cuda_ops.h,
// for any number of tokens. Includes no CUDA header.
#pragma once

#include "kernels/cuda/launch_context.h"
#include "kernels/ops.h"

namespace fut::cuda {

// Weights of the types bf16 and fp8 of ops.h. The same bits for a token whatever other tokens there are.
void row_qkv_rope_append(const QkvRopeAppendArgs& a, LaunchContext& context);
// Of `count` tokens from `first` on: turns, rotates, rounds and stores what the projections gave, float32
// [token][outputs].
void finish_heads(const QkvRopeAppendArgs& a, const float* projected, std::int64_t first,
                  std::int64_t count, LaunchContext& context);
void row_linear_residual(const LinearResidualArgs& a, LaunchContext& context);
void row_gate_up_swiglu(const GateUpSwigluArgs& a, LaunchContext& context);
// BF16 or INT8 weights, rescoring included.
void row_lm_head(const LmHeadArgs& a, LaunchContext& context);

}  // namespace fut::cuda
