// Number formats, random numbers and rope frequencies against published or independently computed
// values.
#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "kernels/numeric/formats.h"
#include "kernels/numeric/philox.h"
#include "kernels/numeric/rope_table.h"
#include "tests/support/compare.h"

namespace fut::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

// The value of a binary16 number from its definition.
double f16_by_definition(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1F;
  const int fraction = bits & 0x3FF;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

bool is_f16_nan_or_infinity(std::uint16_t bits) {
  return (bits & 0x7C00) == 0x7C00;
}

TEST(Formats, EveryF16WidensExactlyAndNarrowsBack) {
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float wide = f16_to_f32(bits);
    if (is_f16_nan_or_infinity(bits)) {
      EXPECT_EQ(std::isnan(wide), (bits & 0x3FF) != 0) << i;
      EXPECT_EQ(std::signbit(wide), (bits & 0x8000) != 0) << i;
      if (!std::isnan(wide)) {
        EXPECT_EQ(f32_to_f16(wide), bits) << i;
      }
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), f16_by_definition(bits)) << i;
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0) << i;
    ASSERT_EQ(f32_to_f16(wide), bits) << i;
  }
}

TEST(Formats, EveryBf16WidensExactlyAndNarrowsBack) {
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float wide = bf16_to_f32(bits);
    ASSERT_EQ(bits_of(wide), i << 16);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(wide)))) << i;
    } else {
      ASSERT_EQ(f32_to_bf16(wide), bits) << i;
    }
  }
}

// Between each two neighbours of a format: just below the middle goes down, just above goes up, and
// the middle goes to the even one.
template <class Narrow, class Widen>
void expect_ties_to_even(Narrow narrow, Widen widen, std::uint32_t last_finite) {
  for (std::uint32_t i = 0; i < last_finite; ++i) {
    const auto low = static_cast<std::uint16_t>(i);
    const auto high = static_cast<std::uint16_t>(i + 1);
    // Exact in float32 for both formats: their steps leave at least one more place.
    const float middle = (widen(low) + widen(high)) / 2;
    const std::uint16_t even = (low & 1) == 0 ? low : high;
    ASSERT_EQ(narrow(middle), even) << i;
    ASSERT_EQ(narrow(std::nextafter(middle, 0.0F)), low) << i;
    ASSERT_EQ(narrow(std::nextafter(middle, kInfinity)), high) << i;
    ASSERT_EQ(narrow(-middle), even | 0x8000) << i;
  }
}

TEST(Formats, F16RoundsToNearestAndTiesToEven) {
  expect_ties_to_even(f32_to_f16, f16_to_f32, 0x7BFF);
}

TEST(Formats, Bf16RoundsToNearestAndTiesToEven) {
  // The last binade is left out: the sum of two neighbours there overflows.
  expect_ties_to_even(f32_to_bf16, bf16_to_f32, 0x7F00);
}

TEST(Formats, OverflowGoesToInfinityAtHalfAStepPastTheLargest) {
  EXPECT_EQ(f32_to_f16(65519.0F), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0F), 0x7C00);
  EXPECT_EQ(f32_to_f16(-65520.0F), 0xFC00);
  EXPECT_EQ(f32_to_f16(1e30F), 0x7C00);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(f32_to_bf16(-std::numeric_limits<float>::max()), 0xFF80);
  EXPECT_EQ(f32_to_bf16(bf16_to_f32(0x7F7F)), 0x7F7F);
}

TEST(Formats, NansStayNansEvenIfTheirPayloadIsCutOff) {
  const float quiet = std::bit_cast<float>(0x7F800001U);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(quiet))));
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(quiet))));
}

// Known answers published with Random123 for philox4x32 with ten rounds.
TEST(Philox, GivesThePublishedAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  constexpr std::uint32_t kOnes = 0xFFFFFFFFU;
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U}));
  EXPECT_EQ(philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU}));
  EXPECT_EQ(philox4x32_10({0x243F6A88U, 0x85A308D3U, 0x13198A2EU, 0x03707344U},
                          {0xA4093822U, 0x299F31D0U}),
            (Words{0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U}));
}

TEST(Philox, UniformTakesTheUpperBitsOfTheFirstWord) {
  EXPECT_EQ(philox_uniform(0, 0), static_cast<float>(0x6627E8) * 0x1p-24F);
  // Seed and draw index fill key and counter from their low words on.
  const std::array<std::uint32_t, 4> words = philox4x32_10({2, 1, 0, 0}, {4, 3});
  EXPECT_EQ(philox_uniform(0x300000004ULL, 0x100000002ULL),
            static_cast<float>(words[0] >> 8) * 0x1p-24F);
}

TEST(Philox, UniformStaysBelowOneAndSpreadsEvenly) {
  constexpr int kDraws = 20000;
  std::array<int, 10> bins{};
  for (int i = 0; i < kDraws; ++i) {
    const float u = philox_uniform(42, static_cast<std::uint64_t>(i));
    ASSERT_GE(u, 0.0F);
    ASSERT_LT(u, 1.0F);
    ++bins.at(static_cast<std::size_t>(u * 10));
  }
  // Each bin is binomial with p = 0.1; six standard deviations.
  const double deviation = std::sqrt(kDraws * 0.1 * 0.9);
  for (const int count : bins) EXPECT_NEAR(count, kDraws / 10, 6 * deviation);
}

RopeParams llama3_params() {
  RopeParams params;
  params.theta = 500000;
  params.scaling = RopeParams::Scaling::Llama3;
  params.factor = 8;
  params.low_freq_factor = 1;
  params.high_freq_factor = 4;
  params.original_max_position_embeddings = 64;
  return params;
}

// The expected numbers have seven digits.
void expect_frequencies(const RopeParams& params, const std::vector<double>& expected) {
  const std::vector<double> actual = rope_inverse_frequencies(params, 16);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], expected[i] * 0.5e-6) << "frequency " << i;
  }
}

TEST(Rope, UnscaledFrequenciesArePowersOfTheta) {
  RopeParams params;
  params.theta = 500000;
  expect_frequencies(params, {1, 0.1939227, 0.03760603, 7.292665e-3, 1.414214e-3, 2.742482e-4,
                              5.318296e-5, 1.031339e-5});
}

TEST(Rope, Llama3ScalingKeepsShortDividesLongAndBlendsBetween) {
  expect_frequencies(llama3_params(), {1, 0.07940301, 4.700754e-3, 9.115831e-4, 1.767767e-4,
                                       3.428102e-5, 6.647870e-6, 1.289173e-6});
}

TEST(Rope, LinearScalingDividesAll) {
  RopeParams params;
  params.theta = 500000;
  params.scaling = RopeParams::Scaling::Linear;
  params.factor = 2;
  expect_frequencies(params, {0.5, 0.09696135, 0.018803015, 3.6463325e-3, 7.07107e-4, 1.371241e-4,
                              2.659148e-5, 5.156695e-6});
}

TEST(Rope, TableHoldsCosAndSinOfPositionTimesFrequency) {
  const RopeParams params = llama3_params();
  const RopeTable table = make_rope_table(params, 16, 131072);
  const std::vector<double> frequencies = rope_inverse_frequencies(params, 16);
  EXPECT_EQ(table.num_positions, 131072);
  EXPECT_EQ(table.half_dim, 8);
  ASSERT_EQ(table.cos.size(), 131072U * 8);
  ASSERT_EQ(table.sin.size(), 131072U * 8);
  for (const int position : {0, 1, 63, 64, 65, 1023, 100003, 131071}) {
    for (std::size_t i = 0; i < 8; ++i) {
      const std::size_t index = static_cast<std::size_t>(position) * 8 + i;
      const double angle = position * frequencies[i];
      EXPECT_EQ(table.cos[index], static_cast<float>(std::cos(angle))) << position << ", " << i;
      EXPECT_EQ(table.sin[index], static_cast<float>(std::sin(angle))) << position << ", " << i;
    }
  }
}

}  // namespace
}  // namespace fut::test
