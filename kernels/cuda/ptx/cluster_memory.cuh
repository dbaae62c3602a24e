// Pointers into the shared memory of other blocks of a cluster, and where a block stands in it. PTX ISA,
// "mapa" and "special registers".
#pragma once

#include <cstdint>

namespace fut::cuda::ptx {

// The same place in the shared memory of block `rank` of the cluster, for plain loads, stores and
// atomics.
template <class T>
__device__ __forceinline__ T* in_block(T* shared_pointer, std::uint32_t rank) {
  std::uint64_t there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(shared_pointer), "r"(rank));
  return reinterpret_cast<T*>(there);
}

__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ std::uint32_t cluster_size() {
  std::uint32_t size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

}  // namespace fut::cuda::ptx
