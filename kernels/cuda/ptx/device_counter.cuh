// Counters in memory by which blocks of a kernel learn who comes last. PTX ISA, "atom" and "Memory
// Consistency Model": behind a barrier of the block an arrival of one thread releases what all its threads
// wrote, and in front of one it acquires for all of them what others released.
#pragma once

namespace fut::cuda::ptx {

// Counts from 0 to `last` and on from 0, and returns what was there before.
__device__ __forceinline__ unsigned arrive(unsigned* counter, unsigned last) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(last)
               : "memory");
  return before;
}

}  // namespace fut::cuda::ptx
