// Launches decode_layers.cuh's kernel where it takes the layers; else their ops, one by one.
#include "kernels/cuda/decode_layers.cuh"
#include "kernels/cuda/decode_layers.h"
#include "kernels/cuda/launch.cuh"

namespace fut::cuda {
namespace {

using Kernel = void (*)(DecodeLayersArgs);

template <int kGroup>
Kernel kernel_for(int head_dim) {
  using Config = Int4GemmConfig<2, kGroup>;
  return head_dim == 64 ? decode_layers_kernel<Config, 64> : decode_layers_kernel<Config, 128>;
}

}  // namespace

void launch_decode_layers(const DecodeLayersShape& shape, DecodeLayersArgs args,
                          LaunchContext& context) {
  const DecodeLayersMemory& places = args.places;
  args.counters =
      static_cast<std::uint8_t*>(context.scratch(ScratchUse::LayerCounters, places.counter_bytes));
  args.memory = static_cast<std::uint8_t*>(context.scratch(ScratchUse::LayerResults, places.bytes));
  const Kernel kernel =
      shape.weight_group == 128 ? kernel_for<128>(shape.head_dim) : kernel_for<64>(shape.head_dim);
  // The same limit always: another thread's launch of this instance may be under way.
  FUT_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
  const int blocks = context.machine().num_multiprocessors;
  // More than half of a multiprocessor's, so that no two blocks share one.
  const int bytes = args.plan.layout.bytes > kLeastInt4SharedBytes ? args.plan.layout.bytes
                                                                   : kLeastInt4SharedBytes;
  const LaunchShape launch{dim3(static_cast<unsigned>(blocks)), dim3(kInt4GemmThreads),
                           static_cast<std::size_t>(bytes)};
  launch_dependent("decode_layers", kernel, launch, context.handle(), args);
}

}  // namespace fut::cuda
