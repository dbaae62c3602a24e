// What the current device runs of the INT4 main loop at a time.
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/int4_ops.h"

namespace fut::cuda {
namespace {

// As large as a block of the main loop gets: how many clusters fit depends on nothing else.
__global__ void __launch_bounds__(kInt4GemmThreads) full_block_kernel() {}

int max_clusters(int cluster) {
  FUT_CUDA_CHECK(cudaFuncSetAttribute(
      full_block_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
  cudaLaunchConfig_t launch = {};
  launch.gridDim = static_cast<unsigned>(cluster);
  launch.blockDim = kInt4GemmThreads;
  launch.dynamicSmemBytes = kMaxSharedBytes;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  launch.attrs = &attribute;
  launch.numAttrs = 1;
  int clusters = 0;
  FUT_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, full_block_kernel, &launch));
  return clusters;
}

}  // namespace

Int4GemmMachine query_int4_gemm_machine() {
  int device = 0;
  FUT_CUDA_CHECK(cudaGetDevice(&device));
  Int4GemmMachine machine;
  FUT_CUDA_CHECK(
      cudaDeviceGetAttribute(&machine.num_multiprocessors, cudaDevAttrMultiProcessorCount, device));
  machine.max_clusters_of_2 = max_clusters(2);
  machine.max_clusters_of_4 = max_clusters(4);
  machine.max_clusters_of_8 = max_clusters(8);
  return machine;
}

}  // namespace fut::cuda
