// advance on the GPU; see kernels/step_advance.h.
// launch  one block of 128 threads, a thread a row
// bound   latency: the launch, a chain of three loads a row, and posted stores to the host
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/system_memory.cuh"

namespace fut::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) advance_kernel(StepState s) {
  ptx::take_turn();
  const std::uint64_t step = *s.step;
  std::byte* slot = s.ring.slot(step);
  auto* shown = reinterpret_cast<std::int32_t*>(slot + StepRingView::kTokensOffset);
  for (int row = static_cast<int>(threadIdx.x); row < s.rows; row += kThreads) {
    shown[row] = advance_row(s, row);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  *s.step = step + 1;
  ptx::store_release_system(reinterpret_cast<std::uint64_t*>(slot), step + 1);
}

}  // namespace

void advance(const StepState& state, LaunchContext& context) {
  check(state);
  launch_dependent("advance", advance_kernel, LaunchShape{.grid = dim3(1), .block = dim3(kThreads)},
                   context.handle(), state);
}

}  // namespace fut::cuda
