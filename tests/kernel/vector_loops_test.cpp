// The inner loops in every build that this machine runs: the same bits as the contract's own words,
// for every type of weight, every remainder of tile and register, at any alignment.
#include "kernels/cpu/vector_loops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dot.h"
#include "kernels/numeric/formats.h"
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
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
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
  std::vector<std::uint16_t> all(0x10000 + 5);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const auto count = static_cast<std::int64_t>(all.size());
  for (const DType dtype : {DType::F16, DType::BF16}) {
    std::vector<float> expected;
    for (const std::uint16_t bits : all) {
      expected.push_back(dtype == DType::F16 ? f16_to_f32(bits) : bf16_to_f32(bits));
    }
    std::vector<float> actual(all.size());
    GetParam()->widen(dtype, all.data(), count, actual.data());
    EXPECT_TRUE(same_bits(expected, actual, {1, count})) << dtype_name(dtype);
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
