// Where a thread stands. PTX ISA, "%laneid", "shfl.sync".
#pragma once

namespace fut::cuda::ptx {

// This thread's number in its warp. Read once and kept: the compiler would rather read threadIdx again
// and again, a few dozen cycles each time.
__device__ __forceinline__ int lane() {
  int result;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(result));
  return result;
}

// This thread's warp in its block, in a way that the compiler knows to be the same for all lanes: without
// it, it takes products of a warpgroup under a condition for ones that may have to wait for each other.
__device__ __forceinline__ int warp_index() {
  return __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x / 32), 0);
}

}  // namespace fut::cuda::ptx
