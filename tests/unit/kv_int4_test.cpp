// The codes of the KV cache: what a scale and a minimum are, which code a number gets, how far off
// it comes back, and the numbers at the edge of FP16. And FP16 by addition, of which the same is
// asked as of the conversion.
#include "kernels/numeric/kv_int4.h"

#include <array>
#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "kernels/numeric/hadamard.h"

namespace fut {
namespace {

float scale_of(KvInt4Params params) {
  return f16_to_f32(params.scale);
}
float minimum_of(KvInt4Params params) {
  return f16_to_f32(params.minimum);
}

std::vector<float> normal_row(std::uint32_t seed, float deviation, float mean) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution(mean, deviation);
  std::vector<float> row;
  for (int i = 0; i < 64; ++i) row.push_back(bf16_to_f32(f32_to_bf16(distribution(generator))));
  return row;
}

TEST(KvInt4, TheEndsOfARangeAreTheFirstAndTheLastCode) {
  const std::array<float, 4> row = {-1.0F, 0.5F, 2.75F, 0.0F};  // a range of 15 quarters
  const KvInt4Params params = kv_int4_params(row);
  EXPECT_EQ(scale_of(params), 0.25F);
  EXPECT_EQ(minimum_of(params), -1.0F);
  EXPECT_EQ(encode_kv_int4(-1.0F, params), 0);
  EXPECT_EQ(encode_kv_int4(0.5F, params), 6);
  EXPECT_EQ(encode_kv_int4(2.75F, params), 15);
  for (const float v : row) EXPECT_EQ(decode_kv_int4(encode_kv_int4(v, params), params), v);
}

TEST(KvInt4, EveryCodeComesBackAsItself) {
  for (const float scale : {0x1p-24F, 0x1p-14F, 0.0117F, 1.0F, 1000.0F}) {
    for (const float minimum : {-9.5F, 0.0F, 0.333F}) {
      const KvInt4Params params = {f32_to_f16(scale), f32_to_f16(minimum)};
      for (int u = 0; u <= 15; ++u) {
        // Where a step is lost beside the minimum, another code may stand for the same number.
        const float number = decode_kv_int4(u, params);
        EXPECT_EQ(decode_kv_int4(encode_kv_int4(number, params), params), number);
        if (scale < 0x1p-7F) continue;
        EXPECT_EQ(encode_kv_int4(number, params), u) << scale << ", " << minimum;
      }
    }
  }
}

TEST(KvInt4, TiesGoToTheEvenCode) {
  const KvInt4Params params = {f32_to_f16(2.0F), f32_to_f16(-1.0F)};
  for (int u = 0; u < 15; ++u) {
    const float half = -1.0F + 2.0F * static_cast<float>(u) + 1.0F;
    EXPECT_EQ(encode_kv_int4(half, params), u % 2 == 0 ? u : u + 1) << u;
  }
}

TEST(KvInt4, NumbersOutsideTheRangeGetItsEnds) {
  const KvInt4Params params = {f32_to_f16(0.5F), f32_to_f16(1.0F)};
  EXPECT_EQ(encode_kv_int4(-100.0F, params), 0);
  EXPECT_EQ(encode_kv_int4(8.4F, params), 15);
  EXPECT_EQ(encode_kv_int4(3e38F, params), 15);
  EXPECT_EQ(encode_kv_int4(INFINITY, params), 15);
  EXPECT_EQ(encode_kv_int4(-INFINITY, params), 0);
  EXPECT_EQ(encode_kv_int4(NAN, params), 0);
}

// Half a step, and what rounding the two parameters to FP16 can do: the minimum by 2^-11 of itself
// or 2^-25, fifteen scales by 2^-11 of the range or 15 * 2^-25; and float32 roundings of all of
// these, which 2^-20 of the largest number covers many times over.
TEST(KvInt4, NumbersComeBackWithinHalfAStep) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const float deviation = std::ldexp(1.0F, static_cast<int>(seed % 24) - 12);
    const std::vector<float> row = normal_row(seed, deviation, seed % 3 == 0 ? 5 * deviation : 0);
    const KvInt4Params params = kv_int4_params(row);
    double largest = 0;
    for (const float v : row) largest = std::max(largest, std::fabs(static_cast<double>(v)));
    const double range = 2 * largest;
    const double bound = scale_of(params) / 2.0 + largest * 0x1p-11 + 0x1p-25 + range * 0x1p-11 +
                         15 * 0x1p-25 + largest * 0x1p-20;
    for (const float v : row) {
      EXPECT_NEAR(decode_kv_int4(encode_kv_int4(v, params), params), v, bound) << seed;
    }
  }
}

TEST(KvInt4, AGroupWithoutARangeIsItsMinimum) {
  for (const float value : {0.0F, -0.0F, 1.5F, -65504.0F, 0x1p-20F}) {
    const std::vector<float> row(32, value);
    const KvInt4Params params = kv_int4_params(row);
    EXPECT_EQ(params.scale, 0);
    EXPECT_EQ(encode_kv_int4(value, params), 0);
    EXPECT_EQ(decode_kv_int4(0, params), value);
  }
}

// A range below 15 halves of FP16's smallest step has no scale: codes 0, never a division by zero.
TEST(KvInt4, ARangeThatNoScaleCanExpressIsNoRange) {
  const std::array<float, 2> row = {0.0F, 7.5F * 0x1p-24F};
  const KvInt4Params params = kv_int4_params(row);
  EXPECT_EQ(params.scale, 0);  // a tie: half a step goes to zero
  EXPECT_EQ(encode_kv_int4(row[1], params), 0);
  const std::array<float, 2> wider = {0.0F, 8 * 0x1p-24F};
  EXPECT_EQ(kv_int4_params(wider).scale, 1);
}

TEST(KvInt4, ParametersSaturateAtTheLargestFp16) {
  const std::array<float, 3> huge = {-1e30F, 0.0F, 1e30F};
  const KvInt4Params params = kv_int4_params(huge);
  EXPECT_EQ(scale_of(params), 65504.0F);
  EXPECT_EQ(minimum_of(params), -65504.0F);
  EXPECT_EQ(encode_kv_int4(-1e30F, params), 0);
  EXPECT_EQ(encode_kv_int4(1e30F, params), 15);
  EXPECT_TRUE(std::isfinite(decode_kv_int4(15, params)));
  const std::array<float, 2> widest = {-3e38F, 3e38F};  // whose range is no float32
  EXPECT_EQ(scale_of(kv_int4_params(widest)), 65504.0F);
}

TEST(KvInt4, SaturationTouchesNothingThatFits) {
  EXPECT_EQ(f32_to_f16_saturating(65504.0F), 0x7BFF);
  EXPECT_EQ(f32_to_f16_saturating(1e9F), 0x7BFF);
  EXPECT_EQ(f32_to_f16_saturating(-INFINITY), 0xFBFF);
  EXPECT_EQ(f32_to_f16_saturating(1.0F), 0x3C00);
  EXPECT_EQ(f32_to_f16_saturating(-0.0F), 0x8000);
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16_saturating(NAN))));
}

// Around every FP16 that is not negative, the middle of its neighbours included, which is a tie.
TEST(RoundToF16, IsTheConversionThereAndBack) {
  const auto check = [](float value) {
    const float expected = f16_to_f32(f32_to_f16(value));
    const float actual = round_to_f16(value);
    return std::bit_cast<std::uint32_t>(expected) == std::bit_cast<std::uint32_t>(actual);
  };
  for (std::uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const float number = f16_to_f32(static_cast<std::uint16_t>(bits));
    const float next = f16_to_f32(static_cast<std::uint16_t>(bits + 1));
    const float middle = (number + next) / 2;
    for (const float v : {number, std::nextafter(number, next), std::nextafter(middle, number),
                          middle, std::nextafter(middle, next)}) {
      ASSERT_TRUE(check(v)) << v;
    }
  }
  EXPECT_TRUE(check(65504.0F));
  for (const float tiny : {0x1p-149F, 0x1p-126F, 0x1p-26F}) EXPECT_TRUE(check(tiny)) << tiny;
  EXPECT_TRUE(std::isnan(round_to_f16(NAN)));
}

// ---- rotation of keys and queries --------------------------------------------------------------

TEST(HadamardBlocks, AreSylvestersMatrixOverTheRootOfItsOrder) {
  for (const int block : {2, 4, 16, 64, 128}) {
    const auto norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
    for (int one = 0; one < 128; one += 5) {
      std::vector<float> row(128, 0.0F);
      row[static_cast<std::size_t>(one)] = 1.0F;
      hadamard_blocks(row.data(), 128, block);
      for (int i = 0; i < 128; ++i) {
        const bool same_block = i / block == one / block;
        const int sign =
            std::popcount(static_cast<unsigned>(i % block & one % block)) % 2 == 0 ? 1 : -1;
        ASSERT_EQ(row[static_cast<std::size_t>(i)],
                  same_block ? static_cast<float>(sign) * norm : 0.0F)
            << block << ": " << one << ", " << i;
      }
    }
  }
}

// Blocks whose root is a power of two rotate integers without rounding: twice is not at all.
TEST(HadamardBlocks, AreTheirOwnInverse) {
  for (const int block : {4, 16, 64}) {
    std::vector<float> row;
    for (int i = 0; i < 128; ++i) row.push_back(static_cast<float>(i * i % 17 - 8));
    std::vector<float> twice = row;
    hadamard_blocks(twice.data(), 128, block);
    EXPECT_NE(twice, row);
    hadamard_blocks(twice.data(), 128, block);
    EXPECT_EQ(twice, row) << block;
  }
}

TEST(HadamardBlocks, BlocksArePowersOfTwoThatDivideTheHead) {
  for (const int block : {2, 4, 8, 16, 32, 64}) EXPECT_TRUE(is_rotation_block(block, 64));
  for (const int block : {-2, 0, 1, 3, 48, 128}) EXPECT_FALSE(is_rotation_block(block, 64));
}

}  // namespace
}  // namespace fut
