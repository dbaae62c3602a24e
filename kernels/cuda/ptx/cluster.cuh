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

// 8 bytes of shared memory.
__device__ __forceinline__ float2 load_shared_pair(std::uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address));
  return v;
}
// 8 bytes of the shared memory of any block of the cluster.
__device__ __forceinline__ float2 load_cluster_pair(std::uint32_t address) {
  float2 v;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
               : "=f"(v.x), "=f"(v.y)
               : "r"(address)
               : "memory");
  return v;
}
__device__ __forceinline__ void store_shared_pair(std::uint32_t address, const float2& v) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}

// What was written before arriving is seen after waiting. All threads of all blocks, warps whole.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// The same where nothing written has to be seen: without the wait for stores that is part of the other.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace fut::cuda::ptx
