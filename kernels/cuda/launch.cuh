// Launching a kernel that may start while its predecessor in the stream still runs. Such a kernel calls
// ptx::take_turn() before it touches anything that a kernel before it may write or read, in every thread
// that does; see ptx/dependent_launch.cuh.
#pragma once

#include <cstdint>
#include <cuda_runtime.h>
#include <utility>

#include "kernels/cuda/cuda_check.h"

namespace fut::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  // dynamic
  unsigned cluster = 1;          // blocks along x that form a cluster
};

// Blocks for `count` things, so many to a block.
inline unsigned blocks_for(std::int64_t count, std::int64_t of_block) {
  return static_cast<unsigned>((count + of_block - 1) / of_block);
}

// Two kernels share a multiprocessor only where both want it cut into caches and shared memory the same
// way; else the second waits until the first has left. So all kernels of a step ask for the same.
template <class... Params>
void prepare_kernel(void (*kernel)(Params...)) {
  FUT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                      cudaSharedmemCarveoutMaxShared));
}

// `op` names the launch in errors.
template <class... Params, class... Args>
void launch_dependent(const char* op, void (*kernel)(Params...), const LaunchShape& shape,
                      StreamHandle stream, Args&&... args) {
  prepare_kernel(kernel);
  cudaLaunchConfig_t launch = {};
  launch.gridDim = shape.grid;
  launch.blockDim = shape.block;
  launch.dynamicSmemBytes = shape.shared_bytes;
  launch.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {shape.cluster, 1, 1};
  launch.attrs = attributes;
  launch.numAttrs = shape.cluster > 1 ? 2 : 1;
  FUT_CUDA_CHECK(cudaLaunchKernelEx(&launch, kernel, Params(std::forward<Args>(args))...));
  check_launch(op, stream);
}

}  // namespace fut::cuda
