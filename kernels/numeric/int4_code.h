// The 4-bit code of a weight: code * scale, code -8 .. 7, one signed BF16 scale for a group of
// columns. Exact scalar functions for quantisers, reference and tests. Not how a scale is chosen
// (the quantisers do) and not where a code lies (layout/int4_tile.h).
#pragma once

#include <cstdint>

#include "kernels/numeric/formats.h"

namespace fut {

inline constexpr int kInt4Min = -8;
inline constexpr int kInt4Max = 7;

// A group's scale as it is stored. A type of its own, for its bits convert to a float only too
// easily. It may be negative: the code -8 then stands for the largest positive weight.
struct Int4Scale {
  std::uint16_t bf16 = 0;

  // The nearest BF16, ties to even. A scale must be rounded before codes are found with it.
  [[nodiscard]] static constexpr Int4Scale nearest(float value) { return {f32_to_bf16(value)}; }
  [[nodiscard]] constexpr float value() const { return bf16_to_f32(bf16); }
  bool operator==(const Int4Scale&) const = default;
};

// clamp(round(weight / scale), -8, 7), ties to even. A scale of zero (or a NaN quotient: the loader
// refuses weights that are not finite) gives code 0.
//
// It divides: weight * (1 / scale) is rounded twice and lands on the other side of a tie, or on it,
// for weights that are half a step off, and these are common, since a scale of amax / 7.5 puts
// every group's largest weight exactly on a tie. In double the quotient of a float32 weight and a
// BF16 scale cannot reach a tie by rounding either: off a tie it is off by 2^-26 at least.
[[nodiscard]] constexpr int encode_int4(double weight, Int4Scale scale) {
  const double quotient = scale.value() == 0.0F ? 0.0 : weight / static_cast<double>(scale.value());
  if (quotient != quotient) return 0;
  if (quotient <= kInt4Min) return kInt4Min;
  if (quotient >= kInt4Max) return kInt4Max;
  // At 1.5 * 2^52 a double has steps of 1: the addition rounds to the nearest, ties to even.
  constexpr double kStepsOfOne = 0x1.8p52;
  return static_cast<int>((quotient + kStepsOfOne) - kStepsOfOne);
}

// Exact: four bits times eight bits of significand. (Overflows where 8 * scale does.)
[[nodiscard]] constexpr float decode_int4(int code, Int4Scale scale) {
  return static_cast<float>(code) * scale.value();
}

}  // namespace fut
