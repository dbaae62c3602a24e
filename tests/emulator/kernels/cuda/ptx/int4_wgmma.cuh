// kernels/cuda/ptx/int4_wgmma.cuh for the emulator: each warp of a warpgroup by itself, for none has to do
// with the others' rows.
#pragma once

#include <cstring>

#include "tests/emulator/device.h"

namespace fut::cuda::ptx {

inline constexpr int kSwizzledColumns = 64;
// 16-byte pieces of a row are exchanged by the row's number.
inline int swizzled_offset(int token, int k) {
  return token * 128 + (k / 8 ^ token % 8) * 16 + k % 8 * 2;
}

inline std::uint64_t wgmma_descriptor(std::uint32_t address) {
  if (address % 1024 != 0) emulator::fail("operand B stands askew");
  return address >> 4;
}

inline int warp_index() {
  return static_cast<int>(threadIdx.x / 32);
}

inline std::uint32_t two_columns(std::uint32_t block, int token, int k) {
  std::uint32_t pair = 0;
  std::memcpy(&pair, emulator::own_memory(block + swizzled_offset(token, k), 4, 4), 4);
  return pair;
}

template <int kTiles, int kBlocks>
void multiply_warpgroup(float (&c)[kTiles][4], std::uint32_t (&a)[4 * kBlocks][4],
                        std::uint64_t b) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int k = 0; k < 4 * kBlocks; ++k) {
    const auto block = static_cast<std::uint32_t>(b << 4) + k / 4 * 8 * kTiles * 128;
    for (int n = 0; n < kTiles; ++n) {
      const int token = 8 * n + lane / 4;
      const int column = k % 4 * 16 + lane % 4 * 2;
      emulator::multiply(c[n], a[k], two_columns(block, token, column),
                         two_columns(block, token, column + 8));
    }
  }
}

}  // namespace fut::cuda::ptx
