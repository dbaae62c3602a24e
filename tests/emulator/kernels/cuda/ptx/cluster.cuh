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
inline void store_in_cluster_16(std::uint32_t address, const float4& v) {
  std::memcpy(emulator::cluster_memory(address, 16, 16), &v, 16);
}
inline void store_shared_pair(std::uint32_t address, const float2& v) {
  std::memcpy(emulator::own_memory(address, 8, 8), &v, 8);
}
inline float2 load_shared_pair(std::uint32_t address) {
  float2 v;
  std::memcpy(&v, emulator::own_memory(address, 8, 8), 8);
  return v;
}
inline float2 load_cluster_pair(std::uint32_t address) {
  float2 v;
  std::memcpy(&v, emulator::cluster_memory(address, 8, 8), 8);
  return v;
}
inline void cluster_arrive() {
  emulator::cluster_arrive();
}
inline void cluster_arrive_relaxed() {
  emulator::cluster_arrive();
}
inline void cluster_wait() {
  emulator::cluster_wait();
}

}  // namespace fut::cuda::ptx
