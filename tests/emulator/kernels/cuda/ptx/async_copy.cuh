// kernels/cuda/ptx/async_copy.cuh for the emulator: a copy arrives when its thread waits for it, not before.
#pragma once

#include <cstring>

#include "tests/emulator/device.h"

namespace fut::cuda::ptx {

inline void copy_16(std::uint32_t destination, const void* source, std::uint32_t bytes) {
  if (bytes != 0 && reinterpret_cast<std::uintptr_t>(source) % 16 != 0) {
    emulator::fail("a copy of 16 bytes from beside a multiple of 16");
  }
  // Whoever still reads the place, or already, gets NaN.
  std::memset(emulator::own_memory(destination, 16, 16), 0xFF, 16);
  emulator::copy_16_bytes(destination, bytes == 0 ? nullptr : source);
}
inline void commit_copies() {
  emulator::end_copies();
}
template <int kPending>
void wait_for_copies() {
  emulator::wait_for_copies(kPending);
}

}  // namespace fut::cuda::ptx
