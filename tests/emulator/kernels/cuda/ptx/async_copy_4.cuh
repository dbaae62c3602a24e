// kernels/cuda/ptx/async_copy_4.cuh for the emulator.
#pragma once

#include <cstring>

#include "tests/emulator/device.h"

namespace fut::cuda::ptx {

inline void copy_4_bytes(std::uint32_t destination, const void* source) {
  std::memset(emulator::own_memory(destination, 4, 4), 0xFF, 4);
  emulator::copy_4_bytes(destination, source);
}
inline void wait_for_copies() {
  emulator::land_copies(
      [](std::uint8_t* destination, const void* source) { std::memcpy(destination, source, 4); });
}

}  // namespace fut::cuda::ptx
