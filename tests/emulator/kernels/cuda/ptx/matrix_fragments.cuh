// Of kernels/cuda/ptx/matrix_fragments.cuh what emulated kernels use.
#pragma once

#include <cmath>
#include <cstring>

#include "tests/emulator/device.h"

namespace fut::cuda::ptx {

inline void load_matrices(std::uint32_t (&m)[4], std::uint32_t address) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  (void)emulator::own_memory(address, 16, 16);
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t row = emulator::exchange(address, 8 * i + lane / 4);
    std::memcpy(&m[i], emulator::own_memory(row + lane % 4 * 4, 4, 4), 4);
  }
}

inline float exp2_fast(float x) {
  return x < -126.0F ? 0.0F : std::exp2(x);
}
inline float reciprocal(float x) {
  return 1.0F / x;
}

}  // namespace fut::cuda::ptx
