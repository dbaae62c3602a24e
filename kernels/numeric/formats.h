// Number formats of weights as exact scalar functions: the truth that the vectorised loops and the
// GPU kernels are tested against. Not how a backend converts in bulk.
#pragma once

#include <bit>
#include <cstdint>

namespace fut {

// bfloat16 is the upper half of a float32: widening is exact.
[[nodiscard]] constexpr float bf16_to_f32(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// To the nearest, ties to even; beyond the largest finite value to infinity; a NaN stays a NaN
// (quiet, the upper payload bits kept).
[[nodiscard]] constexpr std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x0040U);
  }
  // Adding just under half of the last kept place, plus that place's own bit, carries exactly when
  // the dropped half is above one half, or is one half and the kept part is odd.
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

// IEEE binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits. Widening is exact, subnormals
// included.
[[nodiscard]] constexpr float f16_to_f32(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t fraction = bits & 0x3FFU;
  if (exponent == 0x1FU) {
    return std::bit_cast<float>(sign | 0x7F800000U | (fraction << 13));
  }
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (fraction << 13));
}

// To the nearest, ties to even; 65520 and beyond to infinity; a NaN stays a quiet NaN.
[[nodiscard]] constexpr std::uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x3FFU));
  }
  if (magnitude >= std::bit_cast<std::uint32_t>(65520.0F)) {
    return static_cast<std::uint16_t>(sign | 0x7C00U);
  }
  if (magnitude < std::bit_cast<std::uint32_t>(0x1p-14F)) {
    // A float32 between 2^-1 and 1 has steps of 2^-24, the size of a binary16 subnormal's step: the
    // addition rounds as asked, and the steps above one half are the answer.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(
        sign | (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5F)));
  }
  const std::uint32_t rebiased = magnitude - (112U << 23);
  return static_cast<std::uint16_t>(sign | ((rebiased + 0xFFFU + ((rebiased >> 13) & 1U)) >> 13));
}

// f32_to_f16, but beyond FP16's range, infinities included, to its largest number.
[[nodiscard]] constexpr std::uint16_t f32_to_f16_saturating(float value) {
  constexpr float kF16Max = 65504.0F;
  return f32_to_f16(value > kF16Max ? kF16Max : value < -kF16Max ? -kF16Max : value);
}

}  // namespace fut
