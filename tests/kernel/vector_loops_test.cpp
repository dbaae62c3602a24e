// The inner loops in every build that this machine runs: the same bits as the contract's own words,
// for every type of weight, every remainder of tile and register, at any alignment; and roundings
// that are those of the scalar functions.
#include "kernels/cpu/vector_loops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dot.h"
#include "kernels/layout/int4_tile.h"
#include "kernels/numeric/e4m3.h"
#include "tests/support/backends.h"

namespace fut::test {
namespace {

using cpu::VectorLoops;

class VectorLoopsTest : public testing::TestWithParam<const VectorLoops*> {};

std::vector<float> contract_dots(const std::vector<float>& x, const std::vector<float>& weight,
                                 std::int64_t tokens, std::int64_t rows, std::int64_t cols) {
  std::vector<float> result;
  for (std::int64_t m = 0; m < tokens; ++m) {
    for (std::int64_t n = 0; n < rows; ++n) {
      result.push_back(cpu::dot(x.data() + m * cols, weight.data() + n * cols, cols));
    }
  }
  return result;
}

TEST_P(VectorLoopsTest, DotsAreTheContractsBitForBit) {
  cpu::CpuBackend backend(1);
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16, DType::E4M3}) {
    for (const std::int64_t cols : {1, 2, 15, 16, 17, 31, 32, 47, 48, 100, 256, 384}) {
      for (const std::int64_t tokens : {1, 2, 3, 4, 5, 7, 8}) {
        for (const std::int64_t rows : {1, 3, 4, 5, 9}) {
          const std::vector<float> x = normal_values(tokens * cols, 1);
          const GuardedWeight weight(backend, dtype, {rows, cols}, normal_values(rows * cols, 2));
          std::vector<float> out(static_cast<std::size_t>(tokens * rows), kPoison);
          GetParam()->dots({x.data(), cols, tokens, dtype, weight.view().data, cols, rows, cols,
                            out.data(), rows});
          ASSERT_TRUE(same_bits(contract_dots(x, weight.rounded(), tokens, rows, cols), out,
                                {tokens, rows}))
              << dtype_name(dtype) << ", " << tokens << " tokens, " << rows << " rows, " << cols
              << " columns";
        }
      }
    }
  }
}

TEST_P(VectorLoopsTest, WeightedRowsAddValuesInAscendingOrder) {
  for (const std::int64_t cols : {2, 6, 8, 16, 24, 40, 64, 72, 128, 130}) {
    for (const std::int64_t num_values : {1, 2, 63, 64}) {
      for (const std::int64_t num_sums : {1, 2, 3, 4, 5, 8}) {
        const std::vector<float> factors = normal_values(num_sums * num_values, 3);
        const std::vector<float> values = normal_values(num_values * cols, 4);
        std::vector<float> sums = normal_values(num_sums * cols, 5);
        std::vector<float> expected = sums;
        for (std::int64_t m = 0; m < num_sums; ++m) {
          for (std::int64_t i = 0; i < num_values; ++i) {
            const float factor = factors[static_cast<std::size_t>(m * num_values + i)];
            for (std::int64_t d = 0; d < cols; ++d) {
              const float product = factor * values[static_cast<std::size_t>(i * cols + d)];
              expected[static_cast<std::size_t>(m * cols + d)] += product;
            }
          }
        }
        GetParam()->add_weighted_rows({factors.data(), num_values, values.data(), cols, num_values,
                                       cols, sums.data(), cols, num_sums});
        ASSERT_TRUE(same_bits(expected, sums, {num_sums, cols}))
            << num_sums << " sums of " << num_values << " values, " << cols << " columns";
      }
    }
  }
}

TEST_P(VectorLoopsTest, WidenEveryValueExactly) {
  for (const DType dtype : {DType::F16, DType::BF16, DType::E4M3}) {
    const bool is_byte = dtype == DType::E4M3;
    // Five more, so that the last register is not full.
    const std::size_t count = (is_byte ? 0x100 : 0x10000) + 5;
    std::vector<std::uint16_t> codes(count);
    std::vector<float> expected;
    for (std::size_t i = 0; i < count; ++i) {
      if (is_byte) {
        reinterpret_cast<std::uint8_t*>(codes.data())[i] = static_cast<std::uint8_t>(i);
      } else {
        codes[i] = static_cast<std::uint16_t>(i);
      }
      expected.push_back(value_of(dtype, static_cast<std::uint32_t>(i)));
    }
    std::vector<float> actual(count);
    GetParam()->widen(dtype, codes.data(), static_cast<std::int64_t>(count), actual.data());
    EXPECT_TRUE(same_bits(expected, actual, {1, static_cast<std::int64_t>(count)}))
        << dtype_name(dtype);
  }
}

TEST_P(VectorLoopsTest, WidenEveryInt8) {
  std::vector<std::int8_t> codes;
  std::vector<float> expected;
  for (int v = -128; v < 128 + 5; ++v) {
    codes.push_back(static_cast<std::int8_t>(v));
    expected.push_back(static_cast<float>(codes.back()));
  }
  std::vector<float> actual(codes.size());
  GetParam()->widen_int8(codes.data(), static_cast<std::int64_t>(codes.size()), actual.data());
  EXPECT_EQ(expected, actual);
}

// Every sign and exponent with fractions around each border of rounding of the three types, both
// NaNs and both infinities among them.
std::vector<float> values_to_round() {
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 0x1000; ++upper) {  // sign, exponent, 3 fraction bits
    for (const int kept : {3, 7, 10}) {                     // E4M3, BF16, F16
      for (const std::uint32_t last_bit : {0U, 1U}) {       // even and odd
        for (const std::int32_t past_half : {-1, 0, 1}) {
          const int dropped = 23 - kept;
          const std::uint32_t kept_bits = kept == 3 ? upper ^ last_bit : upper;
          const std::uint32_t odd = kept == 3 ? 0 : last_bit << dropped;
          const std::uint32_t half = 1U << (dropped - 1);
          values.push_back(std::bit_cast<float>((kept_bits << 20) + odd + half +
                                                static_cast<std::uint32_t>(past_half)));
        }
      }
    }
    values.push_back(std::bit_cast<float>(upper << 20));
  }
  for (const float v : {448.0F, 464.0F, 65504.0F, 65519.0F, 65520.0F, 0x1p-10F, 0x1p-25F}) {
    for (const float toward : {0.0F, 1e30F}) {
      values.insert(values.end(), {v, -v, std::nextafter(v, toward), -std::nextafter(v, toward)});
    }
  }
  return values;
}

TEST_P(VectorLoopsTest, RoundAsTheScalarFunctionsDoAndCountWhatE4m3Clips) {
  const std::vector<float> values = values_to_round();
  const auto count = static_cast<std::int64_t>(values.size());
  const std::int64_t num_clipped =
      std::count_if(values.begin(), values.end(), [](float v) { return e4m3_saturates(v); });
  EXPECT_GT(num_clipped, 100);
  for (const DType dtype : {DType::BF16, DType::F16, DType::E4M3}) {
    std::vector<float> expected;
    for (const float v : values) expected.push_back(rounded_to(dtype, v));
    const std::int64_t wanted = dtype == DType::E4M3 ? num_clipped : 0;

    std::vector<float> rounded = values;
    EXPECT_EQ(GetParam()->round_to(dtype, rounded.data(), count), wanted) << dtype_name(dtype);
    EXPECT_TRUE(same_bits(expected, rounded, {1, count})) << dtype_name(dtype);

    std::vector<std::uint8_t> codes(values.size() * static_cast<std::size_t>(dtype_bytes(dtype)));
    EXPECT_EQ(GetParam()->narrow(dtype, values.data(), count, codes.data()), wanted);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, codes.data() + i * dtype_bytes(dtype), dtype_bytes(dtype));
      ASSERT_EQ(bits, bits_of(dtype, values[i])) << dtype_name(dtype) << " of " << values[i];
    }
  }
}

TEST_P(VectorLoopsTest, NarrowWritesNothingPastTheEnd) {
  const std::vector<float> values = normal_values(40, 1);
  for (const DType dtype : {DType::F32, DType::BF16, DType::F16, DType::E4M3}) {
    for (std::int64_t count = 1; count <= 40; ++count) {
      const auto bytes = static_cast<std::size_t>(count * dtype_bytes(dtype));
      std::vector<std::uint8_t> out(bytes + 64, 0xA5);
      GetParam()->narrow(dtype, values.data(), count, out.data());
      for (std::size_t i = bytes; i < out.size(); ++i) ASSERT_EQ(out[i], 0xA5) << count;
    }
  }
}

// Every code in every place of a record.
TEST_P(VectorLoopsTest, UnpackInt4AsTheLayoutHasIt) {
  for (const int group : {64, 128}) {
    const layout::Int4Tile tile = {16, 128, group};
    for (int shift = 0; shift < 16; ++shift) {
      std::vector<std::uint8_t> record(static_cast<std::size_t>(tile.record_bytes()));
      std::vector<float> expected;
      for (int row = 0; row < 16; ++row) {
        for (int col = 0; col < group; ++col) {
          const int u = (row * 7 + col * 3 + col / 16 + shift) % 16;
          layout::write_nibble(record.data(), tile.slot(row, col), u);
          expected.push_back(static_cast<float>(u - layout::kInt4CodeBias));
        }
      }
      std::vector<float> actual(expected.size(), kPoison);
      GetParam()->unpack_int4(record.data(), group, actual.data());
      ASSERT_TRUE(same_bits(expected, actual, {16, group})) << "groups of " << group;
    }
  }
}

std::vector<float> exponentials(const VectorLoops& loops, std::vector<float> values,
                                float subtract) {
  loops.exponentials(values.data(), static_cast<std::int64_t>(values.size()), subtract);
  return values;
}

// Every 4099th float from where the result rounds to 0 to where it overflows.
std::vector<float> arguments_of_exp() {
  std::vector<float> values;
  for (const std::uint32_t sign : {0U, 0x80000000U}) {
    const float limit = sign == 0 ? 88.7F : 104.0F;
    for (std::uint32_t bits = 0; std::bit_cast<float>(bits) < limit; bits += 4099) {
      values.push_back(std::bit_cast<float>(sign | bits));
    }
  }
  return values;
}

TEST_P(VectorLoopsTest, ExponentialsAreWithinOneUnit) {
  const std::vector<float> values = arguments_of_exp();
  std::vector<Bounded> expected;
  for (const float v : values) expected.push_back(exp(Bounded(v)));
  EXPECT_TRUE(within_bounds(expected, exponentials(*GetParam(), values, 0),
                            {1, static_cast<std::int64_t>(values.size())}));
}

TEST_P(VectorLoopsTest, ExponentialsHoldAtTheirEnds) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {-kInfinity, -1e30F, -104, 0, -0.0F, 89, 1e30F, kInfinity};
  const std::vector<float> expected = {0, 0, 0, 1, 1, kInfinity, kInfinity, kInfinity};
  EXPECT_TRUE(same_bits(expected, exponentials(*GetParam(), values, 0), {1, 8}));
  EXPECT_TRUE(std::isnan(exponentials(*GetParam(), {kPoison}, 0)[0]));
  EXPECT_TRUE(same_bits(std::vector<float>{1}, exponentials(*GetParam(), {3.5F}, 3.5F), {1, 1}));
}

// All builds against the first, for each length around the registers' widths.
TEST_P(VectorLoopsTest, ElementwiseLoopsGiveTheBitsOfThePlainestBuildAtEveryLength) {
  const VectorLoops& plain = *cpu::usable_vector_loops().front();
  const VectorLoops& loops = *GetParam();
  for (std::int64_t count = 1; count <= 40; ++count) {
    const Shape shape = {1, count};
    const std::vector<float> values = normal_values(count, 6, 20.0F);
    const std::vector<float> up = normal_values(count, 7);
    EXPECT_TRUE(same_bits(exponentials(plain, values, 3), exponentials(loops, values, 3), shape));

    std::vector<float> expected(values.size());
    std::vector<float> actual(values.size());
    plain.swiglu(values.data(), up.data(), count, expected.data());
    loops.swiglu(values.data(), up.data(), count, actual.data());
    EXPECT_TRUE(same_bits(expected, actual, shape));

    expected = values;
    for (float& v : expected) v *= 0.3F;
    actual = values;
    EXPECT_EQ(loops.scale_and_find_maximum(actual.data(), count, 0.3F),
              *std::max_element(expected.begin(), expected.end()));
    EXPECT_TRUE(same_bits(expected, actual, shape));
  }
}

INSTANTIATE_TEST_SUITE_P(Builds, VectorLoopsTest, testing::ValuesIn(cpu::usable_vector_loops()),
                         [](const auto& build) {
                           std::string name(build.param->name);
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace fut::test
