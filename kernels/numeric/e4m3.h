// The 8-bit float E4M3 (OCP 8-bit floating point: 1 sign, 4 exponent bits with bias 7, 3 fraction
// bits, no infinity, one NaN of each sign) as exact scalar functions: the truth that the vectorised
// loops and the GPU's conversions are tested against. Not a choice of scales.
#pragma once

#include <bit>
#include <cstdint>

namespace fut {

inline constexpr float kE4m3Max = 448.0F;
inline constexpr std::uint8_t kE4m3MaxCode = 0x7E;  // 1.75 * 2^8; 0x7F is the NaN
inline constexpr std::uint8_t kE4m3Nan = 0x7F;

// Whether a conversion loses the value's size: what the saturation counters count.
[[nodiscard]] constexpr bool e4m3_saturates(float value) {
  return value > kE4m3Max || value < -kE4m3Max;
}

// Exact. Codes 0x7F and 0xFF give a NaN.
[[nodiscard]] constexpr float e4m3_to_f32(std::uint8_t code) {
  const std::uint32_t sign = (code & 0x80U) << 24;
  const std::uint32_t magnitude = code & 0x7FU;
  if (magnitude == kE4m3Nan) return std::bit_cast<float>(sign | 0x7FC00000U);
  if (magnitude < 0x08U) {  // zero and subnormals: steps of 2^-9
    const float value = static_cast<float>(magnitude) * 0x1p-9F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + ((127U - 7U) << 23)));
}

// To the nearest, ties to even; beyond +-448, infinities included, to +-448; a NaN becomes kE4m3Nan
// whatever its sign, as the GPU's saturating conversion has it.
[[nodiscard]] constexpr std::uint8_t f32_to_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return kE4m3Nan;
  if (magnitude >= std::bit_cast<std::uint32_t>(kE4m3Max)) {
    return static_cast<std::uint8_t>(sign | kE4m3MaxCode);
  }
  if (magnitude < std::bit_cast<std::uint32_t>(0x1p-6F)) {
    // A float32 between 2^14 and 2^15 has steps of 2^-9, the size of a subnormal's step: the
    // addition rounds as asked, and the steps above 2^14 are the answer.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14F;
    return static_cast<std::uint8_t>(
        sign | (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0x1p14F)));
  }
  // Just under half of the last kept place, plus that place's own bit, carries exactly when the
  // dropped part is above one half, or is one half and the kept part is odd.
  const std::uint32_t rebiased = magnitude - ((127U - 7U) << 23);
  return static_cast<std::uint8_t>(sign | ((rebiased + 0x7FFFFU + ((rebiased >> 20) & 1U)) >> 20));
}

}  // namespace fut
