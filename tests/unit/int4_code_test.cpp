// The code of a weight: rounding, ties, clamping, signed scales.
#include "kernels/numeric/int4_code.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "kernels/layout/int4_tile.h"

namespace fut {
namespace {

constexpr Int4Scale scale_of(float value) {
  return Int4Scale::nearest(value);
}

// Scales of every kind: powers of two and not, tiny (subnormal too), large, negative.
std::vector<Int4Scale> some_scales() {
  std::vector<Int4Scale> scales;
  for (std::uint32_t bits = 1; bits < 0x7F80; bits += 61) {
    scales.push_back({static_cast<std::uint16_t>(bits)});
    scales.push_back({static_cast<std::uint16_t>(bits | 0x8000U)});
  }
  return scales;
}

TEST(Int4Code, QuotientsRoundToTheNearestAndTiesGoToEven) {
  const Int4Scale one = scale_of(1.0F);
  const std::vector<double> quotients = {-8.6, -8.5, -7.5, -6.5, -0.51, -0.5,
                                         0.5,  0.51, 1.5,  2.5,  6.5,   7.5};
  const std::vector<int> codes = {-8, -8, -8, -6, -1, 0, 0, 1, 2, 2, 6, 7};
  for (std::size_t i = 0; i < codes.size(); ++i) {
    EXPECT_EQ(encode_int4(quotients[i], one), codes[i]) << quotients[i];
  }
}

TEST(Int4Code, EveryCodeSurvivesTheRoundTripUnderEveryScale) {
  for (const Int4Scale scale : some_scales()) {
    for (int code = kInt4Min; code <= kInt4Max; ++code) {
      const float weight = decode_int4(code, scale);
      if (std::isinf(weight)) continue;
      EXPECT_EQ(encode_int4(weight, scale), code) << "scale " << scale.value();
      EXPECT_EQ(weight, code * static_cast<double>(scale.value())) << "decoding is exact";
    }
  }
}

// What is nearest is decided without dividing: code c is right when weight / scale lies within half
// a step of it, compared as products, which double holds exactly.
TEST(Int4Code, TheCodeIsTheNearestOneDecidedWithoutDividing) {
  for (const Int4Scale scale : some_scales()) {
    const double step = std::abs(static_cast<double>(scale.value()));
    for (int half_steps = -17; half_steps <= 17; ++half_steps) {
      const double tie = half_steps * (step / 2);
      const float centre = static_cast<float>(tie);
      if (!std::isfinite(centre)) continue;
      const float infinity = std::numeric_limits<float>::infinity();
      for (const float weight :
           {centre, std::nextafter(centre, infinity), std::nextafter(centre, -infinity)}) {
        if (!std::isfinite(weight)) continue;
        const int code = encode_int4(weight, scale);
        const double signed_weight = std::signbit(scale.value()) ? -double{weight} : double{weight};
        const double miss = std::abs(signed_weight - code * step);
        if (std::abs(signed_weight) > 8 * step) {
          EXPECT_EQ(code, signed_weight < 0 ? kInt4Min : kInt4Max);
        } else if (miss == step / 2) {
          EXPECT_TRUE(code % 2 == 0 || code == kInt4Max) << "weight " << weight;
        } else {
          EXPECT_TRUE(miss < step / 2 || code == kInt4Max)
              << "weight " << weight << " step " << step;
        }
      }
    }
  }
}

// The reason for dividing: with the reciprocal some weights on a tie leave it.
TEST(Int4Code, AReciprocalWouldDecideSomeTiesOtherwise) {
  int different = 0;
  for (const Int4Scale scale : some_scales()) {
    const float reciprocal = 1.0F / scale.value();
    if (!std::isnormal(reciprocal)) continue;
    for (int code = -7; code <= 6; ++code) {
      const float on_a_tie = (static_cast<float>(code) + 0.5F) * scale.value();
      if (!std::isnormal(on_a_tie)) continue;
      EXPECT_EQ(encode_int4(on_a_tie, scale) % 2, 0);
      const auto by_reciprocal = static_cast<int>(std::nearbyint(on_a_tie * reciprocal));
      different += by_reciprocal != encode_int4(on_a_tie, scale) ? 1 : 0;
    }
  }
  EXPECT_GT(different, 0);
}

TEST(Int4Code, OutsideTheRangeItClamps) {
  const Int4Scale scale = scale_of(0.125F);
  EXPECT_EQ(encode_int4(1e30, scale), 7);
  EXPECT_EQ(encode_int4(-1e30, scale), -8);
  EXPECT_EQ(encode_int4(std::numeric_limits<double>::infinity(), scale), 7);
}

// The largest weight of either sign can be met exactly: by -8 and a scale of the opposite sign.
TEST(Int4Code, ANegativeScaleMirrorsTheRange) {
  const Int4Scale scale = scale_of(-0.5F);
  EXPECT_EQ(encode_int4(4.0, scale), -8);
  EXPECT_EQ(decode_int4(-8, scale), 4.0F);
  EXPECT_EQ(encode_int4(-3.5, scale), 7);
  EXPECT_EQ(encode_int4(-4.0, scale), 7);
}

TEST(Int4Code, AZeroScaleGivesCodeZero) {
  for (const Int4Scale zero : {Int4Scale{0x0000}, Int4Scale{0x8000}}) {
    EXPECT_EQ(encode_int4(0.0, zero), 0);
    EXPECT_EQ(encode_int4(3.0, zero), 0);
    EXPECT_EQ(decode_int4(7, zero), 0.0F);
  }
  EXPECT_EQ(encode_int4(std::numeric_limits<double>::quiet_NaN(), scale_of(1.0F)), 0);
}

TEST(Int4Code, ScalesAreRoundedToBf16) {
  EXPECT_EQ(Int4Scale::nearest(1.0F + 0x1p-8F).value(), 1.0F) << "a tie, to even";
  EXPECT_EQ(Int4Scale::nearest(1.0F + 0x1p-7F).value(), 1.0F + 0x1p-7F);
  EXPECT_EQ(Int4Scale::nearest(-0.1F).bf16, 0xBDCD);
}

TEST(Int4Code, StoredCodesFillANibble) {
  EXPECT_EQ(kInt4Min + layout::kInt4CodeBias, 0);
  EXPECT_EQ(kInt4Max + layout::kInt4CodeBias, 15);
}

static_assert(encode_int4(-4.0, scale_of(0.5F)) == -8, "usable at compile time");

}  // namespace
}  // namespace fut
