// Where a thread stands, read anew at each call: what follows from it is not kept in registers over code that
// needs them all. PTX ISA, "%ctaid", "%nctaid", "%tid".
#pragma once

namespace fut::cuda::ptx {

__device__ __forceinline__ int block_index() {
  int result;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(result));
  return result;
}
__device__ __forceinline__ int num_blocks() {
  int result;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(result));
  return result;
}
__device__ __forceinline__ int thread_index() {
  int result;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(result));
  return result;
}

}  // namespace fut::cuda::ptx
