// What GPTQ does to rows on the GPU; contracts in ops_gptq.h, the work itself in gptq_rows.cuh.
// launch  a warp for each row, two to a block: a slab's rows are few
// bound   latency
#include <cuda_runtime.h>

#include "kernels/cuda/gptq_kernels.h"
#include "kernels/cuda/gptq_rows.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/warp.cuh"

namespace fut::cuda {
namespace {

constexpr int kWarps = 2;  // of a block
constexpr int kThreads = kWarps * kWarpColumns;

[[nodiscard]] __device__ std::int64_t own_row() {
  return std::int64_t{blockIdx.x} * kWarps + ptx::warp_index();
}

__global__ void __launch_bounds__(kThreads) row_dots_kernel(RowDotsArgs a) {
  ptx::take_turn();
  if (own_row() < a.rows) dot_row(a, own_row(), ptx::lane());
}

__global__ void __launch_bounds__(kThreads) sweep_block_kernel(SweepBlockArgs a) {
  ptx::take_turn();
  if (own_row() < a.q.rows) sweep_row(a, own_row(), ptx::lane());
}

__global__ void __launch_bounds__(kThreads) descend_block_kernel(DescendBlockArgs a) {
  ptx::take_turn();
  if (own_row() < a.q.rows) descend_row(a, own_row(), ptx::lane());
}

template <class Args>
void launch(const char* op, void (*kernel)(Args), std::int64_t rows, const Args& args,
            LaunchContext& context) {
  const LaunchShape shape{dim3(blocks_for(rows, kWarps)), dim3(kThreads)};
  launch_dependent(op, kernel, shape, context.handle(), args);
}

}  // namespace

void row_dots(const RowDotsArgs& a, LaunchContext& context) {
  check(a);
  launch("row_dots", row_dots_kernel, a.rows, a, context);
}

void sweep_block(const SweepBlockArgs& a, LaunchContext& context) {
  check(a);
  launch("sweep_block", sweep_block_kernel, a.q.rows, a, context);
}

void descend_block(const DescendBlockArgs& a, LaunchContext& context) {
  check(a);
  launch("descend_block", descend_block_kernel, a.q.rows, a, context);
}

}  // namespace fut::cuda
