// kernels/cuda/ptx/int4_mma.cuh for the emulator.
#pragma once

#include <array>

#include "kernels/layout/int4_tile.h"
#include "kernels/numeric/formats.h"
#include "tests/emulator/device.h"

namespace fut::cuda::ptx {

// u in units of both kinds of rows, as FP16.
inline constexpr auto kCodes = [] {
  std::array<std::array<std::uint32_t, 16>, 2> codes{};
  for (int u = 0; u < 16; ++u) {
    codes[0][u] = f32_to_f16(static_cast<float>(u) * layout::kInt4LowUnit);
    codes[1][u] = f32_to_f16(static_cast<float>(u) * layout::kInt4HighUnit);
  }
  return codes;
}();

// Nibble by nibble as the table of layout/int4_tile.h has it, not by masks.
inline void unpack_codes(std::uint32_t (&a)[4], std::uint32_t word) {
  for (int i = 0; i < 4; ++i) {
    const auto& codes = kCodes[i % 2];
    a[i] = codes[word >> 4 * i & 0xFU] | codes[word >> 4 * (i + 4) & 0xFU] << 16;
  }
}

inline void bias_operand(std::uint32_t (&a)[4]) {
  for (int i = 0; i < 4; ++i) {
    const float unit = i % 2 == 0 ? layout::kInt4LowUnit : layout::kInt4HighUnit;
    a[i] = 0x00010001U * f32_to_f16(-layout::kInt4CodeBias * unit);
  }
}

inline void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1) {
  const std::uint32_t b[1][2] = {{b0, b1}};
  emulator::multiply({&c, &a, b, 1, 1});
}

}  // namespace fut::cuda::ptx
