// The ops that take INT4 weights on the GPU: launchers behind cuda_ops.h, for 1 to any number of
// tokens (32 a launch). x lies at a multiple of 16 bytes, its row stride too. Includes no CUDA header.
#pragma once

#include "kernels/cuda/launch_context.h"
#include "kernels/ops.h"

namespace fut::cuda {

// How many blocks and clusters of the INT4 main loop the current device runs at a time.
[[nodiscard]] Int4GemmMachine query_int4_gemm_machine();

// The same bits for a token whatever other tokens there are; from the CPU's they differ by the order of
// additions within a group and by one rounding less where a scale is multiplied in.
void int4_linear_residual(const LinearResidualArgs& a, const Int4Matrix& w, LaunchContext& context);
void int4_qkv_rope_append(const QkvRopeAppendArgs& a, const Int4Matrix& w, LaunchContext& context);
void int4_gate_up_swiglu(const GateUpSwigluArgs& a, const Int4Matrix& w, LaunchContext& context);

}  // namespace fut::cuda
