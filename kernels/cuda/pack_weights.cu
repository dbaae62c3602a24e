// pack_int4, weighted_errors and pack_e4m3 on the GPU; contracts in ops_offline.h, the work itself in
// pack_weights.cuh.
// launch  pack_int4: a thread for each word of the stream. weighted_errors: a warp for each 32 rows.
//         pack_e4m3: a block of 256 threads for each row
// bound   memory, but for weighted_errors: one chain of float64 additions a row
#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/offline_ops.h"
#include "kernels/cuda/pack_weights.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/warp.cuh"
#include "kernels/numeric/row_scale.h"

namespace fut::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kErrorWarps = 2;  // of a block

__global__ void __launch_bounds__(kThreads) pack_int4_kernel(PackInt4Args a) {
  ptx::take_turn();
  const std::int64_t word = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (word >= a.tile.bytes() / 4) return;
  reinterpret_cast<std::uint32_t*>(a.packed)[word] = packed_int4_word(a, word);
}

__global__ void __launch_bounds__(32 * kErrorWarps) weighted_errors_kernel(WeightedErrorsArgs a) {
  __shared__ ErrorTile tiles[kErrorWarps];
  ptx::take_turn();
  const int warp = ptx::warp_index();
  const std::int64_t first = (std::int64_t{blockIdx.x} * kErrorWarps + warp) * kErrorRows;
  if (first < a.w.rows) sum_weighted_errors(a, first, ptx::lane(), tiles[warp]);
}

__global__ void __launch_bounds__(kThreads) pack_e4m3_kernel(PackE4m3Args a) {
  __shared__ float largest[kThreads / 32];
  ptx::take_turn();
  const std::int64_t row = blockIdx.x;
  float amax = 0;
  for (std::int64_t c = threadIdx.x; c < a.w.cols; c += kThreads) {
    amax = fmaxf(amax, fabsf(e4m3_weight(a, row, c)));
  }
#pragma unroll
  for (int distance = 16; distance >= 1; distance /= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFU, amax, distance));
  }
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = amax;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) amax = fmaxf(amax, largest[w]);
  const float scale = row_scale(amax, kE4m3Max);
  if (threadIdx.x == 0) a.scales[row] = scale;
  auto* codes = reinterpret_cast<std::uint32_t*>(a.codes + row * a.w.cols);
  for (std::int64_t c = threadIdx.x; c < a.w.cols / 4; c += kThreads) {
    std::uint32_t four = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t code = f32_to_e4m3(__fdiv_rn(e4m3_weight(a, row, 4 * c + i), scale));
      four |= code << (8 * i);
    }
    codes[c] = four;
  }
}

}  // namespace

void pack_int4(const PackInt4Args& a, LaunchContext& context) {
  check(a);
  const LaunchShape shape{dim3(blocks_for(a.tile.bytes() / 4, kThreads)), dim3(kThreads)};
  launch_dependent("pack_int4", pack_int4_kernel, shape, context.handle(), a);
}

void weighted_errors(const WeightedErrorsArgs& a, LaunchContext& context) {
  check(a);
  const LaunchShape shape{dim3(blocks_for(a.w.rows, kErrorWarps * kErrorRows)),
                          dim3(32 * kErrorWarps)};
  launch_dependent("weighted_errors", weighted_errors_kernel, shape, context.handle(), a);
}

void pack_e4m3(const PackE4m3Args& a, LaunchContext& context) {
  check(a);
  const LaunchShape shape{dim3(static_cast<unsigned>(a.w.rows)), dim3(kThreads)};
  launch_dependent("pack_e4m3", pack_e4m3_kernel, shape, context.handle(), a);
}

}  // namespace fut::cuda
