// kernels/cuda/ptx/bulk_copy.cuh for the emulator.
#pragma once

#include <cstring>

#include "kernels/numeric/formats.h"
#include "tests/emulator/device.h"

namespace fut::cuda::ptx {

inline std::uint32_t shared_address(const void* pointer) {
  return emulator::shared_address(pointer);
}
inline void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  emulator::barrier_init(barrier, arrivals);
}
inline void barrier_init_fence() {}
inline void barrier_arrive(std::uint32_t barrier) {
  emulator::barrier_expect(barrier, 0);
}
inline void barrier_arrive_if(std::uint32_t barrier, bool arrives) {
  if (arrives) barrier_arrive(barrier);
}
inline void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  emulator::barrier_expect(barrier, bytes);
}
inline void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  emulator::barrier_wait(barrier, parity);
}
inline void fence_async_proxy() {}
inline std::uint64_t evict_first_policy() {
  return 0;
}

inline void bulk_copy(std::uint32_t destination, const void* source, std::uint32_t bytes,
                      std::uint32_t barrier, std::uint64_t) {
  // Whoever still reads the place, or already, gets NaN.
  std::memset(emulator::own_memory(destination, static_cast<int>(bytes), 16), 0xFF, bytes);
  emulator::bulk_copy(destination, source, bytes, barrier);
}
inline uint4 load_shared_16(std::uint32_t address) {
  uint4 v;
  std::memcpy(&v, emulator::own_memory(address, 16, 16), 16);
  return v;
}
inline float4 load_shared_floats(std::uint32_t address) {
  float4 v;
  std::memcpy(&v, emulator::own_memory(address, 16, 16), 16);
  return v;
}
inline void store_shared_floats(std::uint32_t address, const float4& v) {
  std::memcpy(emulator::own_memory(address, 16, 16), &v, 16);
}
inline void store_shared_16(std::uint32_t address, const uint4& v) {
  std::memcpy(emulator::own_memory(address, 16, 16), &v, 16);
}
template <int kWords>
void load_shared_words(std::uint32_t (&words)[kWords], std::uint32_t address) {
  std::memcpy(words, emulator::own_memory(address, 4 * kWords, 4 * kWords), 4 * kWords);
}
inline float load_shared_bf16(std::uint32_t address) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, emulator::own_memory(address, 2, 2), 2);
  return bf16_to_f32(bits);
}

}  // namespace fut::cuda::ptx
