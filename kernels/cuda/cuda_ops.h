// The ops of ops.h on the GPU: launchers, each with the op's arguments and a stream. They check the
// contract, launch and return; they neither allocate nor wait, so they may be captured. Pointers
// are memory of the current device. Includes no CUDA header.
#pragma once

#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"

namespace fut::cuda {

// The same bits as the CPU's: widening is exact, and the rounding is the same function.
void embed(const EmbedArgs& a, StreamHandle stream);

// How many blocks and clusters of the INT4 main loop the current device runs at a time. Once for each
// device.
[[nodiscard]] Int4GemmMachine query_int4_gemm_machine();

// F16 x (8-byte aligned, row_stride a multiple of 4), INT4 weights and a float32 residual. The same
// bits for a token whatever other tokens there are; from the CPU's they differ by the order of
// additions within a group and by one rounding less where a scale is multiplied in.
void linear_residual(const LinearResidualArgs& a, const Int4GemmMachine& machine,
                     StreamHandle stream);

}  // namespace fut::cuda
