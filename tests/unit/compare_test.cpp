// The comparers of the tests, tested with planted errors: a comparer that lets one through makes
// every test that uses it worthless.
#include "tests/support/compare.h"

#include <cmath>
#include <limits>
#include <random>

#include "kernels/cpu/dot.h"

namespace fut::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Shape kOneByOne = {1, 1};

bool bits_agree(float expected, float actual) {
  return static_cast<bool>(same_bits(std::span(&expected, 1), std::span(&actual, 1), kOneByOne));
}

bool bounds_agree(double expected, double error, float actual) {
  const Bounded bounded(expected, error);
  return static_cast<bool>(within_bounds(std::span(&bounded, 1), std::span(&actual, 1), kOneByOne));
}

TEST(SameBits, AcceptsEqualValues) {
  for (const float v : {0.0F, -0.0F, 1.5F, -1.5F, kInfinity, -kInfinity, kNan}) {
    EXPECT_TRUE(bits_agree(v, v)) << v;
  }
}

TEST(SameBits, RejectsTheNextFloatOnEitherSideOfEverySign) {
  for (const float v : {1.5F, -1.5F, 1e-40F, -1e-40F, 1e30F, -1e30F}) {
    EXPECT_FALSE(bits_agree(v, std::nextafter(v, kInfinity))) << v;
    EXPECT_FALSE(bits_agree(v, std::nextafter(v, -kInfinity))) << v;
  }
}

TEST(SameBits, TellsTheTwoZerosApart) {
  EXPECT_FALSE(bits_agree(0.0F, -0.0F));
}

TEST(SameBits, RejectsANanOnOneSideOnly) {
  EXPECT_FALSE(bits_agree(kNan, 1.0F));
  EXPECT_FALSE(bits_agree(1.0F, kNan));
}

TEST(SameBits, NamesTheFirstWrongElementAndCountsAll) {
  const std::vector<float> expected = {1, 2, 3, 4, 5, 6};
  const std::vector<float> actual = {1, 2, 3, 4, 7, 8};
  const testing::AssertionResult result = same_bits(expected, actual, {2, 3});
  EXPECT_NE(std::string(result.message()).find("2 of 6 elements wrong, the first at [1, 1]"),
            std::string::npos)
      << result.message();
}

TEST(SameBits, RejectsMissingElements) {
  const std::vector<float> expected = {1, 2};
  const std::vector<float> actual = {1};
  EXPECT_FALSE(same_bits(expected, actual, {1, 2}));
}

TEST(WithinBounds, AcceptsUpToTheBoundAndNothingBeyond) {
  for (const double center : {4.0, -4.0, 0.0}) {
    EXPECT_TRUE(bounds_agree(center, 0.5, static_cast<float>(center + 0.5)));
    EXPECT_TRUE(bounds_agree(center, 0.5, static_cast<float>(center - 0.5)));
    EXPECT_FALSE(bounds_agree(center, 0.5, static_cast<float>(center + 0.5625)));
    EXPECT_FALSE(bounds_agree(center, 0.5, static_cast<float>(center - 0.5625)));
  }
}

TEST(WithinBounds, CatchesErrorsBetweenTwoNegatives) {
  EXPECT_FALSE(bounds_agree(-1.0, 1e-6, -2.0F));
  EXPECT_FALSE(bounds_agree(-2.0, 1e-6, -1.0F));
}

TEST(WithinBounds, CatchesAWrongSign) {
  EXPECT_FALSE(bounds_agree(1.0, 1e-6, -1.0F));
  EXPECT_FALSE(bounds_agree(-1.0, 1e-6, 1.0F));
}

TEST(WithinBounds, RejectsNansAndInfinities) {
  EXPECT_FALSE(bounds_agree(1.0, 0.5, kNan));
  EXPECT_FALSE(bounds_agree(static_cast<double>(kNan), 0.5, 1.0F));
  EXPECT_FALSE(bounds_agree(static_cast<double>(kNan), 0.5, kNan));
  EXPECT_FALSE(bounds_agree(1.0, 0.5, kInfinity));
  EXPECT_FALSE(bounds_agree(1.0, std::numeric_limits<double>::infinity(), 1.0F));
  EXPECT_FALSE(bounds_agree(1.0, static_cast<double>(kNan), 1.0F));
}

// Float32 results of random operands must lie within the derived bound, and results with a planted
// error of a few bounds must not.
TEST(Bounded, HoldsForEachOperation) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 2000; ++i) {
    const float a = normal(generator);
    const float b = normal(generator);
    const auto holds = [](float actual, const Bounded& expected) {
      return bounds_agree(expected.value, expected.error, actual) &&
             !bounds_agree(expected.value, expected.error,
                           static_cast<float>(expected.value + 4 * expected.error));
    };
    EXPECT_TRUE(holds(a + b, Bounded(a) + b)) << a << " + " << b;
    EXPECT_TRUE(holds(a - b, Bounded(a) - b)) << a << " - " << b;
    EXPECT_TRUE(holds(a * b, Bounded(a) * b)) << a << " * " << b;
    EXPECT_TRUE(holds(a / b, Bounded(a) / b)) << a << " / " << b;
    EXPECT_TRUE(holds(std::exp(a), exp(Bounded(a)))) << "exp " << a;
    EXPECT_TRUE(holds(std::sqrt(a * a), sqrt(Bounded(a) * a))) << "sqrt " << a << " squared";
  }
}

TEST(Bounded, CarriesTheErrorsOfItsOperands) {
  const Bounded off(1.0, 0.25);
  EXPECT_GE((off + off).error, 0.5);
  EXPECT_GE((off - off).error, 0.5);
  EXPECT_GE((off * off).error, 0.5);
  EXPECT_GE((off / off).error, 0.5);
  EXPECT_GE(exp(off).error, 0.25);
  EXPECT_GE(sqrt(off).error, 0.125);
}

TEST(Bounded, DotProductBoundHoldsAndIsTight) {
  std::mt19937 generator(2);
  std::normal_distribution<float> normal;
  for (const std::size_t length : {1U, 15U, 16U, 17U, 100U, 1000U}) {
    std::vector<float> a(length);
    std::vector<float> b(length);
    for (float& v : a) v = normal(generator);
    for (float& v : b) v = normal(generator);
    const std::vector<Bounded> bounded_a(a.begin(), a.end());
    const std::vector<Bounded> bounded_b(b.begin(), b.end());
    const Bounded expected = contract_dot(bounded_a, bounded_b);
    const float actual = cpu::dot(a.data(), b.data(), static_cast<std::int64_t>(length));
    EXPECT_TRUE(bounds_agree(expected.value, expected.error, actual)) << length;
    // One product left out is seen: the bound is far below a single term.
    EXPECT_LT(expected.error, 0.01) << length;
  }
}

}  // namespace
}  // namespace fut::test
