// Hints about what will be read. PTX ISA, "prefetch".
#pragma once

namespace fut::cuda::ptx {

// No access: nothing is read, so it may come before a kernel's turn. The address is translated, and what lies
// there is brought to the second-level cache, where others' writes arrive as well.
__device__ __forceinline__ void prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

}  // namespace fut::cuda::ptx
