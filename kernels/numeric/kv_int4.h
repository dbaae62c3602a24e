// The 4-bit codes of the KV cache: number = minimum + scale * u with u = 0 .. 15, one scale and one
// minimum, both FP16, for a token, a head and a group of dims. Exact scalar functions for
// reference, kernels' tests and packers; where they lie is layout/kv_page_int4.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "kernels/numeric/formats.h"

namespace fut {

struct KvInt4Params {
  std::uint16_t scale = 0;    // bits of an FP16, not negative
  std::uint16_t minimum = 0;  // bits of an FP16
  bool operator==(const KvInt4Params&) const = default;
};

// The nearest FP16, ties to even, as a float: f16_to_f32(f32_to_f16(value)) for 0 <= value <= 65504
// or a NaN, without a branch. A product of a probability and a scale never leaves that range.
[[nodiscard]] inline float round_to_f16(float value) {
  // Where `value` has steps of FP16's size once 2^13 times its own power of two is added to it; the
  // steps of FP16 stop shrinking at 2^-14.
  const float normal = value > 0x1p-14F ? value : 0x1p-14F;
  const float shift =
      std::bit_cast<float>((std::bit_cast<std::uint32_t>(normal) & 0x7F800000U) + (13U << 23));
  return (value + shift) - shift;
}

// minimum = F16(least value), scale = F16((largest - least) / 15), one float32 subtraction and one
// division. Values are finite. A scale that rounds to zero is a group without a range: all codes 0.
[[nodiscard]] constexpr KvInt4Params kv_int4_params(float least, float largest) {
  return {.scale = f32_to_f16_saturating((largest - least) / 15.0F),
          .minimum = f32_to_f16_saturating(least)};
}
// Of zeros of either sign the first counts as the least and the last as the largest.
[[nodiscard]] inline KvInt4Params kv_int4_params(std::span<const float> values) {
  const auto [least, largest] = std::minmax_element(values.begin(), values.end());
  return kv_int4_params(*least, *largest);
}

// clamp(round((value - minimum) / scale), 0, 15) in float32, one subtraction and one true division,
// ties to even; 0 where the scale is zero.
[[nodiscard]] constexpr int encode_kv_int4(float value, KvInt4Params params) {
  const float scale = f16_to_f32(params.scale);
  if (scale == 0.0F) return 0;
  const float quotient = (value - f16_to_f32(params.minimum)) / scale;
  if (!(quotient > 0.0F)) return 0;
  if (quotient >= 15.0F) return 15;
  // At 1.5 * 2^23 a float32 has steps of 1: the addition rounds to the nearest, ties to even.
  constexpr float kStepsOfOne = 0x1.8p23F;
  const float shifted = quotient + kStepsOfOne;
  return static_cast<int>(shifted - kStepsOfOne);
}

// One product and one sum, each rounded.
[[nodiscard]] inline float decode_kv_int4(int u, KvInt4Params params) {
  const float scaled = f16_to_f32(params.scale) * static_cast<float>(u);
  return f16_to_f32(params.minimum) + scaled;
}

}  // namespace fut
