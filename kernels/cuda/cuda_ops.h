// The ops of ops.h on the GPU: launchers, each with the op's arguments and a stream. They check the
// contract, launch and return; they neither allocate nor wait, so they may be captured. Pointers
// are memory of the current device. Includes no CUDA header.
#pragma once

#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"

namespace fut::cuda {

// The same bits as the CPU's: widening is exact.
void embed(const EmbedArgs& a, StreamHandle stream);

}  // namespace fut::cuda
