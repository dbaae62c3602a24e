// Copies of 16 bytes from global to shared memory that a thread does not wait for. PTX ISA, "cp.async",
// "%laneid".
#pragma once

#include <cstdint>

namespace fut::cuda::ptx {

// Both ends 16-byte aligned; `bytes` of the source, 16 or 0, and zeros behind them.
__device__ __forceinline__ void copy_16(std::uint32_t destination, const void* source,
                                        std::uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(bytes)
               : "memory");
}
// Ends a group of copies.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// This thread's number in its warp. Read once and kept: the compiler would rather read threadIdx again
// and again, a few dozen cycles each time.
__device__ __forceinline__ int lane() {
  int result;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(result));
  return result;
}

}  // namespace fut::cuda::ptx
