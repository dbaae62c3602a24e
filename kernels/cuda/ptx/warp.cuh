// Where a thread stands. PTX ISA, "%laneid".
#pragma once

namespace fut::cuda::ptx {

// This thread's number in its warp. Read once and kept: the compiler would rather read threadIdx again
// and again, a few dozen cycles each time.
__device__ __forceinline__ int lane() {
  int result;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(result));
  return result;
}

}  // namespace fut::cuda::ptx
