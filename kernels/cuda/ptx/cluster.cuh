// Blocks of a cluster: each other's shared memory, and a barrier of all. PTX ISA, "mapa" and
// "barrier.cluster".
#pragma once

#include <cstdint>

namespace fut::cuda::ptx {

// The address of the same place in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ std::uint32_t address_in_block(std::uint32_t address,
                                                          std::uint32_t rank) {
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

__device__ __forceinline__ void store_in_cluster(std::uint32_t address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

__device__ __forceinline__ void store_in_cluster_16(std::uint32_t address, const float4& v) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x),
               "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}

// What was written before arriving is seen after waiting. All threads of all blocks, warps whole.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace fut::cuda::ptx
