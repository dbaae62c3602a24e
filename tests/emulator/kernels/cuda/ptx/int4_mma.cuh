// kernels/cuda/ptx/int4_mma.cuh for the emulator.
#pragma once

#include <array>

#include "kernels/layout/int4_tile.h"
#include "kernels/numeric/formats.h"
#include "tests/emulator/device.h"

namespace fut::cuda::ptx {

struct Int4Masks {
  std::uint32_t low = layout::kInt4LowMask;
  std::uint32_t high = layout::kInt4HighMask;
};

inline constexpr auto kCodes = [] {
  std::array<std::uint32_t, 16> codes{};
  for (int u = 0; u < 16; ++u) {
    codes[u] = f32_to_f16(static_cast<float>(u - layout::kInt4CodeBias));
  }
  return codes;
}();

// Nibble by nibble as the table of layout/int4_tile.h has it, not by masks and magic numbers.
inline void unpack_codes(std::uint32_t (&a)[4], std::uint32_t word, const Int4Masks&) {
  for (int i = 0; i < 4; ++i) {
    a[i] = kCodes[word >> 4 * i & 0xFU] | kCodes[word >> 4 * (i + 4) & 0xFU] << 16;
  }
}

inline void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1) {
  emulator::multiply(c, a, b0, b1);
}

}  // namespace fut::cuda::ptx
