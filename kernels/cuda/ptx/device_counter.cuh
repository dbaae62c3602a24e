// Counters in memory by which blocks of a kernel wait for each other. PTX ISA, "atom", "red", "ld", "Memory
// Consistency Model": behind a barrier of the block an arrival of one thread releases what all its threads
// wrote, and before one a look of one thread acquires it for all.
#pragma once

namespace fut::cuda::ptx {

// Adds one and releases; what was there before is acquired.
__device__ __forceinline__ unsigned long long arrive_and_look(unsigned long long* counter) {
  unsigned long long before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;"
               : "=l"(before)
               : "l"(counter)
               : "memory");
  return before;
}
__device__ __forceinline__ void arrive(unsigned long long* counter) {
  asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(counter) : "memory");
}
// Waits until the counter has come to `count`.
__device__ __forceinline__ void wait_for_count(const unsigned long long* counter,
                                               unsigned long long count) {
  unsigned long long seen;
  do {
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(counter) : "memory");
  } while (seen < count);
}

}  // namespace fut::cuda::ptx
