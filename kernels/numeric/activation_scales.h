// Powers of two by which activations are multiplied before they are rounded to a narrow type, each
// a function of sizes or statistics alone. Exact scalar functions; not how statistics are gathered.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/numeric/e4m3.h"

namespace fut {

// 2^floor(log2(v)) and 2^ceil(log2(v)) for v > 0, exact; kept between 2^-126 and 2^126, so that it
// and its inverse are normal numbers.
[[nodiscard]] inline float power_of_two_below(double v) {
  return static_cast<float>(std::ldexp(1.0, std::clamp(std::ilogb(v), -126, 126)));
}
[[nodiscard]] inline float power_of_two_above(double v) {
  const float below = power_of_two_below(v);
  return static_cast<double>(below) >= v || below == 0x1p126F ? below : 2 * below;
}

// Of a normalised row of `hidden` numbers, none of which can exceed sqrt(hidden): it never
// saturates E4M3.
[[nodiscard]] inline float normalised_operand_scale(std::int64_t hidden) {
  return power_of_two_below(static_cast<double>(kE4m3Max) / std::sqrt(static_cast<double>(hidden)));
}

inline constexpr double kAmaxHeadroom =
    4;  // unseen text has larger values than what was calibrated

// Of an attention output, a weighted mean of values of which none seen was larger than amax_v. 1
// where nothing but zeros was seen.
[[nodiscard]] inline float attention_output_scale(double amax_v) {
  if (!(amax_v > 0)) return 1;
  return power_of_two_below(static_cast<double>(kE4m3Max) / (kAmaxHeadroom * amax_v));
}

// Of a SwiGLU output of root mean square `sigma` and largest size `amax`: headroom above the
// largest, unless ordinary values would then sink into E4M3's subnormals, below 2^-6; a few clipped
// ones do less harm. 1 where nothing but zeros was seen.
[[nodiscard]] inline float swiglu_output_scale(double sigma, double amax) {
  if (!(amax > 0) || !(sigma > 0)) return 1;
  const float by_amax = power_of_two_below(static_cast<double>(kE4m3Max) / (kAmaxHeadroom * amax));
  const float by_sigma = power_of_two_above(0x1p-6 / sigma);
  return by_amax > by_sigma ? by_amax : by_sigma;
}

// Of a row of INT4 codes, -8 .. 7, none of whose scales is larger than `amax`, as E4M3: the least power of
// two by which 8 * amax stays within E4M3's range. 1 for a row of nothing but zeros.
[[nodiscard]] constexpr float expanded_row_scale(float amax) {
  if (!(amax > 0) || amax > std::numeric_limits<float>::max()) return 1;
  static_assert(kE4m3Max == 1.75F * 0x1p8F);
  constexpr std::uint32_t kThreeQuarters = 0x600000U;  // of a float's fraction
  const auto bits = std::bit_cast<std::uint32_t>(amax);
  const int exponent = static_cast<int>(bits >> 23) - 127 + 3 - 8;
  const int e = (bits & 0x7FFFFFU) > kThreeQuarters ? exponent + 1 : exponent;
  return std::bit_cast<float>(static_cast<std::uint32_t>((e < -126 ? -126 : e) + 127) << 23);
}

// The least e >= 0 with amax * 2^-e <= 2^15, which leaves F16's 65504 a factor of two. amax of one
// token's SwiGLU output; 0 where it is not finite.
[[nodiscard]] constexpr std::int32_t swiglu_exponent(float amax) {
  if (!(amax > 0x1p15F) || amax > std::numeric_limits<float>::max()) return 0;
  const auto bits = std::bit_cast<std::uint32_t>(amax);
  const auto e = static_cast<std::int32_t>(bits >> 23) - 127 - 15;
  return (bits & 0x7FFFFFU) == 0 ? e : e + 1;
}

}  // namespace fut
