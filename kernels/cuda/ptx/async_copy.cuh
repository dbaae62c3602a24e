// Copies of 16 bytes from global to shared memory that a thread does not wait for. PTX ISA, "cp.async".
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
// The same under a policy of the second-level cache (bulk_copy.cuh).
__device__ __forceinline__ void copy_16(std::uint32_t destination, const void* source,
                                        std::uint32_t bytes, std::uint64_t policy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(destination),
      "l"(source), "r"(bytes), "l"(policy)
      : "memory");
}
// Ends a group of copies; an empty one counts as well.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace fut::cuda::ptx
