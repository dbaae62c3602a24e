// Multiplying E4M3 numbers and nothing else: random operands that lie in shared memory already, so that
// what is left is the tensor cores' rate at the clock that the card's power allows.
// launch  a block of two warpgroups a multiprocessor, a tile of 128 x 256 sums each, as the product of
//         prompts has it; four stages of operands of 128 bytes of K, taken in turn
// bound   arithmetic: the roof itself
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/product_roof.h"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace fut::cuda {
namespace {

constexpr int kWarpgroups = 2;
constexpr int kThreads = 128 * kWarpgroups;
constexpr int kStages = 4;
constexpr int kRowBytes = 128;
constexpr int kLeftRows = 64;  // of a warpgroup
constexpr int kRightRows = 256;
constexpr int kStageBytes = (kWarpgroups * kLeftRows + kRightRows) * kRowBytes;
constexpr int kSharedBytes = kStages * kStageBytes;

// Of a stage, by all blocks' tensor cores.
constexpr double kStageFlops = 2.0 * kWarpgroups * kLeftRows * kRightRows * kRowBytes;

// Numbers of both signs below 2, and no NaN among them.
__device__ std::uint32_t random_codes(std::uint32_t seed) {
  seed = (seed ^ seed >> 16) * 0x7FEB352DU;
  seed = (seed ^ seed >> 15) * 0x846CA68BU;
  return (seed ^ seed >> 16) & 0xBFBFBFBFU;
}

__global__ void __launch_bounds__(kThreads, 1) product_kernel(int rounds, float* sink) {
  extern __shared__ __align__(1024) std::uint8_t product_shared[];
  auto* words = reinterpret_cast<std::uint32_t*>(product_shared);
  for (int i = static_cast<int>(threadIdx.x); i < kSharedBytes / 4; i += kThreads) {
    words[i] = random_codes(static_cast<std::uint32_t>(i) * gridDim.x + blockIdx.x);
  }
  ptx::fence_async_proxy();
  __syncthreads();
  const int warpgroup = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 128, 0);
  const std::uint32_t first = ptx::shared_address(product_shared);
  float sums[kRightRows / 2];
  for (int round = 0; round < rounds; ++round) {
    const std::uint32_t stage = first + static_cast<std::uint32_t>(round % kStages) * kStageBytes;
    const std::uint64_t left = ptx::wgmma_descriptor(
        stage + static_cast<std::uint32_t>(kRightRows + warpgroup * kLeftRows) * kRowBytes);
    const std::uint64_t right = ptx::wgmma_descriptor(stage);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kRowBytes / 32; ++step) {
      ptx::wgmma(ptx::E4m3Operands{}, sums, left + 2 * step, right + 2 * step,
                 step > 0 ? 1 : round);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
  }
  ptx::wgmma_wait<0>();
  ptx::hold_registers(sums);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRightRows / 2; ++i) sum += sums[i];
  if (sum == 1.2345678e30F) *sink = sum;  // as good as never
}

}  // namespace

double multiply_only(int rounds, float* sink, LaunchContext& context) {
  FUT_CUDA_CHECK(cudaFuncSetAttribute(product_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      kSharedBytes));
  const auto blocks = static_cast<unsigned>(context.machine().num_multiprocessors);
  product_kernel<<<blocks, kThreads, kSharedBytes, context.handle()>>>(rounds, sink);
  check_launch("multiply_only", context.handle());
  return kStageFlops * rounds * blocks;
}

}  // namespace fut::cuda
