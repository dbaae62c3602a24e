// expand on the GPU: INT4 codes to E4M3 of a scale a row. Contract in ops.h.
// launch  a block of 256 threads for each strip of 16 packed rows (expand.cuh), dependent
// bound   memory: half a byte read and one written for each weight
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/expand.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"

namespace fut::cuda {
namespace {

__global__ void __launch_bounds__(kExpandThreads)
    expand_kernel(const __grid_constant__ Expansion e) {
  __shared__ __align__(16) std::uint8_t shared[kExpandSharedBytes];
  ptx::take_turn();
  StripExpansion(e, shared).run();
}

}  // namespace

void expand(const ExpandArgs& a, LaunchContext& context) {
  check(a);
  const LaunchShape shape{dim3(static_cast<unsigned>(a.weight.tile.num_strips())),
                          dim3(kExpandThreads)};
  launch_dependent("expand", expand_kernel, shape, context.handle(), Expansion(a));
}

}  // namespace fut::cuda
