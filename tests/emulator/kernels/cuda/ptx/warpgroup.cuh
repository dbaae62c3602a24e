// kernels/cuda/ptx/warpgroup.cuh for the emulator, where registers do not run out.
#pragma once

#include "tests/emulator/device.h"

namespace fut::cuda::ptx {

template <int kRegisters>
void give_registers() {}
template <int kRegisters>
void take_registers() {}

inline void meet_at(int id, int threads) {
  emulator::meet_at(id, threads, true);
}
inline void arrive_at(int id, int threads) {
  emulator::meet_at(id, threads, false);
}
inline void barrier_arrive_in_cluster(std::uint32_t barrier) {
  emulator::barrier_arrive(barrier);
}

}  // namespace fut::cuda::ptx
