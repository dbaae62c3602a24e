// The 8-bit float: all codes, all BF16 numbers, and every place where the rounding of a float32
// changes, against a second method that searches the table of values.
#include "kernels/numeric/e4m3.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "kernels/numeric/formats.h"

namespace fut {
namespace {

constexpr int kPositiveCodes = 0x7F;  // 0 .. 0x7E are finite and ascending

// The value of a finite positive code from the definition of the format.
double defined_value(int code) {
  const int exponent = code / 8;
  const int fraction = code % 8;
  return exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 7 - 3);
}

// The nearest finite code by search, the even one of two at the same distance.
int nearest_by_search(double magnitude) {
  int best = 0;
  for (int code = 1; code < kPositiveCodes; ++code) {
    const double gain =
        std::abs(defined_value(best) - magnitude) - std::abs(defined_value(code) - magnitude);
    if (gain > 0 || (gain == 0 && code % 2 == 0)) best = code;
  }
  return best;
}

// Differences with a huge magnitude would be rounded to the same number; beyond the largest value
// nothing but that is nearest.
std::uint8_t expected_code(float value) {
  if (std::isnan(value)) return 0x7F;
  const double magnitude = std::min(std::abs(static_cast<double>(value)), 1000.0);
  return static_cast<std::uint8_t>(nearest_by_search(magnitude) | (std::signbit(value) ? 0x80 : 0));
}

TEST(E4m3, EveryCodeHasTheValueOfTheDefinition) {
  for (int code = 0; code < kPositiveCodes; ++code) {
    const float positive = e4m3_to_f32(static_cast<std::uint8_t>(code));
    const float negative = e4m3_to_f32(static_cast<std::uint8_t>(code | 0x80));
    EXPECT_EQ(positive, defined_value(code)) << code;
    EXPECT_EQ(negative, -defined_value(code)) << code;
    EXPECT_FALSE(std::signbit(positive));
    EXPECT_TRUE(std::signbit(negative)) << "negative zero stays negative";
  }
  EXPECT_TRUE(std::isnan(e4m3_to_f32(0x7F)));
  EXPECT_TRUE(std::isnan(e4m3_to_f32(0xFF)));
}

TEST(E4m3, EveryFiniteCodeSurvivesTheRoundTrip) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) continue;
    EXPECT_EQ(f32_to_e4m3(e4m3_to_f32(static_cast<std::uint8_t>(code))), code);
  }
}

TEST(E4m3, EveryBf16NumberRoundsToTheNearestCode) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_to_f32(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(f32_to_e4m3(value), expected_code(value)) << value;
  }
}

// Halfway between two codes, the two float32 numbers beside it, and points further off.
TEST(E4m3, RoundingTurnsAtTheMidpointsAndTiesGoToEven) {
  for (int code = 0; code + 1 < kPositiveCodes; ++code) {
    const double low = defined_value(code), high = defined_value(code + 1);
    const float middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(middle, (low + high) / 2) << "a midpoint is a float32";
    for (const float sign : {1.0F, -1.0F}) {
      const int sign_bit = sign < 0 ? 0x80 : 0;
      const float infinity = std::numeric_limits<float>::infinity();
      EXPECT_EQ(f32_to_e4m3(sign * middle), (code % 2 == 0 ? code : code + 1) | sign_bit);
      EXPECT_EQ(f32_to_e4m3(sign * std::nextafter(middle, 0.0F)), code | sign_bit);
      EXPECT_EQ(f32_to_e4m3(sign * std::nextafter(middle, infinity)), (code + 1) | sign_bit);
    }
    for (int step = 0; step <= 64; ++step) {
      const float value = static_cast<float>(low + (high - low) * step / 64);
      ASSERT_EQ(f32_to_e4m3(value), expected_code(value)) << value;
    }
  }
}

TEST(E4m3, ADenseSweepOfFloat32RoundsToTheNearestCode) {
  // A stride coprime to powers of two visits all exponents with ever other fractions.
  for (std::uint64_t bits = 0; bits <= 0xFFFFFFFFU; bits += 31337) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    ASSERT_EQ(f32_to_e4m3(value), expected_code(value)) << value << " bits " << bits;
  }
}

TEST(E4m3, BeyondTheLargestValueItSaturates) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {448.0F, 463.0F, 464.0F, 465.0F, 480.0F, 1e30F, infinity}) {
    EXPECT_EQ(e4m3_to_f32(f32_to_e4m3(value)), 448.0F) << value;
    EXPECT_EQ(e4m3_to_f32(f32_to_e4m3(-value)), -448.0F) << value;
    EXPECT_EQ(e4m3_saturates(value), value > 448.0F) << value;
    EXPECT_EQ(e4m3_saturates(-value), value > 448.0F) << value;
  }
  EXPECT_FALSE(e4m3_saturates(0.0F));
}

TEST(E4m3, ANanStaysOne) {
  for (const std::uint32_t bits : {0x7FC00000U, 0x7F800001U, 0xFFC00000U, 0xFFFFFFFFU}) {
    EXPECT_EQ(f32_to_e4m3(std::bit_cast<float>(bits)), kE4m3Nan) << bits;
  }
  EXPECT_FALSE(e4m3_saturates(std::numeric_limits<float>::quiet_NaN()));
}

// The codes of INT4 weights, -8 .. 7, are numbers of this format.
TEST(E4m3, SmallIntegersAreExact) {
  for (int i = -16; i <= 16; ++i) {
    const float value = static_cast<float>(i);
    EXPECT_EQ(e4m3_to_f32(f32_to_e4m3(value)), value);
  }
}

static_assert(f32_to_e4m3(448.0F) == kE4m3MaxCode && e4m3_to_f32(kE4m3MaxCode) == kE4m3Max,
              "usable at compile time");

}  // namespace
}  // namespace fut
