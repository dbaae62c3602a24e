// kernels/cuda/ptx/cluster.cuh for the emulator.
#pragma once

#include <cstring>

#include "tests/emulator/device.h"

namespace fut::cuda::ptx {

inline std::uint32_t address_in_block(std::uint32_t address, std::uint32_t rank) {
  return emulator::address_in_block(address, rank);
}
inline void store_in_cluster(std::uint32_t address, float value) {
  std::memcpy(emulator::cluster_memory(address, 4, 4), &value, 4);
}
inline void cluster_arrive() {
  emulator::cluster_arrive();
}
inline void cluster_wait() {
  emulator::cluster_wait();
}

}  // namespace fut::cuda::ptx
