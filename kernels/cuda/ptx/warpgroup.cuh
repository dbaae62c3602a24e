// What warpgroups tell each other: registers handed over, barriers of some of the block's threads, arrivals
// at barriers of other blocks. PTX ISA, "setmaxnreg", "bar" and "mbarrier.arrive".
#pragma once

#include <cstdint>

namespace fut::cuda::ptx {

// All four warps of a warpgroup; a multiple of 8, 24 .. 256. Whoever takes waits for those who give.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Barrier `id` (1 .. 15) of `threads` threads of the block, whole warps.
__device__ __forceinline__ void meet_at(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same without waiting: those who do are let go when all of the `threads` have come.
__device__ __forceinline__ void arrive_at(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// At the barrier in shared memory of another block of the cluster, or of this one; `barrier` as
// address_in_block() has it. Not a release of the cluster's scope, which would wait for all stores of
// this thread: whoever waits there may overwrite what was read, no more.
__device__ __forceinline__ void barrier_arrive_in_cluster(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

}  // namespace fut::cuda::ptx
