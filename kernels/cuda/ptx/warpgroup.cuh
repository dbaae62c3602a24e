// What the warpgroups of a block tell each other: registers handed over, barriers of some of the block's
// threads, arrivals at barriers of other blocks. PTX ISA, "setmaxnreg", "bar", "mbarrier.arrive".
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

// Barrier `id` (1 .. 15) of `threads` threads, whole warps: those who only arrive do not wait.
__device__ __forceinline__ void arrive_at(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void meet_at(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// At the barrier in shared memory of another block of the cluster, or of this one; `barrier` as
// address_in_block() has it.
__device__ __forceinline__ void barrier_arrive_in_cluster(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}

}  // namespace fut::cuda::ptx
