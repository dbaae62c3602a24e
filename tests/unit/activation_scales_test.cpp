// The powers of two by which activations are scaled: exact at and around every power, never beyond
// what they promise.
#include "kernels/numeric/activation_scales.h"

#include <gtest/gtest.h>
#include <limits>

namespace fut {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(ActivationScales, PowersOfTwoBelowAndAboveAreExactAtThePowersThemselves) {
  for (int e = -100; e <= 100; ++e) {
    const float power = std::ldexp(1.0F, e);
    EXPECT_EQ(power_of_two_below(power), power);
    EXPECT_EQ(power_of_two_above(power), power);
    const double just_above = static_cast<double>(power) * (1 + 0x1p-50);
    const double just_below = static_cast<double>(power) * (1 - 0x1p-50);
    EXPECT_EQ(power_of_two_below(just_above), power);
    EXPECT_EQ(power_of_two_above(just_above), 2 * power);
    EXPECT_EQ(power_of_two_below(just_below), power / 2);
    EXPECT_EQ(power_of_two_above(just_below), power);
  }
}

// A normalised row of one spike holds sqrt(hidden), the largest there is.
TEST(ActivationScales, NormalisedInputsCannotSaturateAndWasteLessThanAFactorOfTwo) {
  for (const std::int64_t hidden : {1, 64, 128, 256, 384, 2048, 4096, 5120, 8192, 16384}) {
    const double spike = std::sqrt(static_cast<double>(hidden));
    const double scaled = spike * static_cast<double>(normalised_operand_scale(hidden));
    EXPECT_LE(scaled, 448.0) << hidden;
    EXPECT_GT(2 * scaled, 448.0) << hidden;
  }
  EXPECT_EQ(normalised_operand_scale(256), 16.0F);  // 448 / 16 = 28
  EXPECT_EQ(normalised_operand_scale(4096), 4.0F);  // 448 / 64 = 7
}

TEST(ActivationScales, AttentionOutputsKeepFourTimesTheLargestValueSeen) {
  for (const double amax : {1e-6, 0.3, 1.0, 7.0, 28.0, 112.0, 113.0, 5000.0}) {
    const double largest = amax * static_cast<double>(attention_output_scale(amax));
    EXPECT_LE(4 * largest, 448.0) << amax;
    EXPECT_GT(8 * largest, 448.0) << amax;
  }
  EXPECT_EQ(attention_output_scale(0), 1.0F);
  EXPECT_EQ(attention_output_scale(std::numeric_limits<double>::quiet_NaN()), 1.0F);
}

TEST(ActivationScales, SwigluOutputsKeepHeadroomUnlessOrdinaryValuesWouldSink) {
  EXPECT_EQ(swiglu_output_scale(1.0, 7.0), 16.0F);  // 448 / 28
  // One in a million is a hundred thousand times the rest: 2^-6 / sigma decides.
  EXPECT_EQ(swiglu_output_scale(0x1p-8, 1e5), 4.0F);
  EXPECT_EQ(swiglu_output_scale(0, 5), 1.0F);
  EXPECT_EQ(swiglu_output_scale(1, 0), 1.0F);
}

TEST(ActivationScales, SwigluExponentIsTheLeastThatBringsTheLargestTo32768) {
  EXPECT_EQ(swiglu_exponent(0), 0);
  EXPECT_EQ(swiglu_exponent(0x1p15F), 0);
  EXPECT_EQ(swiglu_exponent(std::nextafter(0x1p15F, kInfinity)), 1);
  EXPECT_EQ(swiglu_exponent(0x1p16F), 1);
  EXPECT_EQ(swiglu_exponent(std::nextafter(0x1p16F, kInfinity)), 2);
  EXPECT_EQ(swiglu_exponent(std::numeric_limits<float>::max()), 113);
  EXPECT_EQ(swiglu_exponent(kInfinity), 0);
  EXPECT_EQ(swiglu_exponent(std::numeric_limits<float>::quiet_NaN()), 0);
  for (float amax = 1.0F; std::isfinite(amax); amax *= 1.37F) {
    const std::int32_t e = swiglu_exponent(amax);
    EXPECT_LE(std::ldexp(amax, -e), 0x1p15F);
    if (e > 0) {
      EXPECT_GT(std::ldexp(amax, -(e - 1)), 0x1p15F);
    }
  }
}

}  // namespace
}  // namespace fut
