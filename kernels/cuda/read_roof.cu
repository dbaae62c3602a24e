// Reading memory and nothing else.
// launch  two blocks of 1024 threads a multiprocessor, each thread eight loads of 16 bytes at a time
// bound   memory: the roof itself
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/read_roof.h"

namespace fut::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kLoads = 8;

__global__ void __launch_bounds__(kThreads)
    read_kernel(const uint4* data, std::size_t count, std::uint32_t* sink) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads * kLoads;
  std::uint32_t sum = 0;
  for (std::size_t first = static_cast<std::size_t>(blockIdx.x) * kThreads * kLoads + threadIdx.x;
       first < count; first += stride) {
    uint4 values[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const std::size_t at = first + static_cast<std::size_t>(i) * kThreads;
      values[i] = at < count ? __ldcs(data + at) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      sum ^= values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
    }
  }
  if (sum == 0x9E3779B9U) *sink = sum;  // as good as never
}

}  // namespace

void read_all(const void* data, std::size_t bytes, std::uint32_t* sink, LaunchContext& context) {
  const auto blocks = static_cast<unsigned>(2 * context.machine().num_multiprocessors);
  read_kernel<<<blocks, kThreads, 0, context.handle()>>>(static_cast<const uint4*>(data),
                                                         bytes / sizeof(uint4), sink);
  check_launch("read_all", context.handle());
}

}  // namespace fut::cuda
