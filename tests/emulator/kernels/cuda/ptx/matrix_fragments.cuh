// Of kernels/cuda/ptx/matrix_fragments.cuh what emulated kernels use.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/formats.h"
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

// The 8 x 8 matrix whose row i lane i names, transposed: lane 4g + t gets rows 2t and 2t + 1 of column g.
inline void load_matrices_transposed(std::uint32_t (&m)[4], std::uint32_t address) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  (void)emulator::own_memory(address, 16, 16);
  for (int i = 0; i < 4; ++i) {
    m[i] = 0;
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t row = emulator::exchange(address, 8 * i + lane % 4 * 2 + half);
      std::uint16_t number = 0;
      std::memcpy(&number, emulator::own_memory(row + lane / 4 * 2, 2, 2), 2);
      m[i] |= std::uint32_t{number} << 16 * half;
    }
  }
}
inline std::uint32_t transposed(std::uint32_t fragment) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  std::uint32_t result = 0;
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t pair = emulator::exchange(fragment, (lane % 4 * 2 + half) * 4 + lane / 8);
    result |= (pair >> 16 * (lane / 4 % 2) & 0xFFFFU) << 16 * half;
  }
  return result;
}
inline void mma_bf16_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                              std::uint32_t b1) {
  const std::uint32_t b[1][2] = {{b0, b1}};
  emulator::multiply({&c, &a, b, 1, 1, true});
}

inline std::uint16_t saturated_f16(float v) {
  return f32_to_f16_saturating(v);
}
inline std::uint8_t saturated_e4m3(float v) {
  return f32_to_e4m3(v);
}
inline float low_f16(std::uint32_t pair) {
  return f16_to_f32(static_cast<std::uint16_t>(pair));
}
inline float high_f16(std::uint32_t pair) {
  return f16_to_f32(static_cast<std::uint16_t>(pair >> 16));
}

inline float exp2_fast(float x) {
  return x < -126.0F ? 0.0F : std::exp2(x);
}
inline float reciprocal(float x) {
  return 1.0F / x;
}
inline float reciprocal_fast(float x) {
  return 1.0F / x;
}

}  // namespace fut::cuda::ptx
