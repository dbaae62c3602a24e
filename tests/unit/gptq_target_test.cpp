// What GPTQ aims at when its inputs are not what they were: the normal equations of least squares.
#include <cmath>
#include <gtest/gtest.h>
#include <random>
#include <thread>

#include "loader/gptq.h"

namespace fut {
namespace {

constexpr std::int64_t kRows = 70, kCols = 12, kTokens = 40;

std::vector<float> random_values(std::int64_t count, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(engine);
  return values;
}

// Weights, inputs x as they are, and how far off they are.
struct Problem {
  HostMatrix w{"w", kRows, kCols};
  std::vector<float> x = random_values(kTokens * kCols, 1);
  std::vector<float> off = random_values(kTokens * kCols, 2);
  SquareMatrix h{kCols}, g{kCols};
  GptqOptions options;

  Problem() {
    w.values = random_values(kRows * kCols, 3);
    for (float& value : off) value *= 0.25F;
    sum();
  }
  void sum() {
    h = g = SquareMatrix(kCols);
    accumulate_hessian(h, view(x), {});
    mirror_lower(h);
    accumulate_products(g, view(off), view(x), {});
  }
  [[nodiscard]] GptqFactor factor() const { return factor_hessian("x", h, options, {}); }
  static MatrixView<const float> view(const std::vector<float>& values) {
    return {values.data(), kTokens, kCols, kCols};
  }
};

double ridge_of(const Problem& p) {
  double trace = 0;
  for (std::int64_t i = 0; i < kCols; ++i) trace += p.h.row(i)[i];
  return p.options.damping * trace / kCols;
}

TEST(UpstreamTarget, MeetsTheNormalEquations) {
  Problem p;
  for (const double share : {0.5, 1.0}) {
    const HostMatrix target = upstream_target(p.w, p.g, p.factor(), share, {});
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < kCols; ++c) {
        // (W* - W) (H + ridge) = share * W G
        double left = 0, right = 0, size = 0;
        for (std::int64_t k = 0; k < kCols; ++k) {
          const double damped = p.h.row(k)[c] + (k == c ? ridge_of(p) : 0.0);
          left += (static_cast<double>(target.row(r)[k]) - p.w.row(r)[k]) * damped;
          size += std::fabs(target.row(r)[k] * damped);
          right += share * p.w.row(r)[k] * p.g.row(k)[c];
        }
        // The target is rounded to float32; the float64 solve before it adds a millionth of that.
        EXPECT_NEAR(left, right, 1.001 * 0x1p-24 * size) << r << ", " << c;
      }
    }
  }
}

TEST(UpstreamTarget, MakesUpForInputsThatWereScaled) {
  // x0 = 1.5 x: the weights want to be half as large again, but for the damping.
  Problem p;
  p.options.damping = 1e-12;
  p.off = p.x;
  for (float& value : p.off) value *= 0.5F;
  p.sum();
  const HostMatrix target = upstream_target(p.w, p.g, p.factor(), 1.0, {});
  for (std::size_t i = 0; i < target.values.size(); ++i) {
    EXPECT_FLOAT_EQ(target.values[i], 1.5F * p.w.values[i]);
  }
}

TEST(UpstreamTarget, IsTheMatrixItselfWhereInputsAreRight) {
  Problem p;
  EXPECT_EQ(upstream_target(p.w, SquareMatrix(kCols), p.factor(), 1.0, {}).values, p.w.values);
  EXPECT_EQ(upstream_target(p.w, p.g, p.factor(), 0.0, {}).values, p.w.values);
  GptqFactor unusable = p.factor();
  unusable.usable = false;
  EXPECT_EQ(upstream_target(p.w, p.g, unusable, 1.0, {}).values, p.w.values);
}

TEST(UpstreamTarget, DoesNotDependOnTheOrderOfTheSweep) {
  Problem p;
  p.options.act_order = false;
  const HostMatrix by_index = upstream_target(p.w, p.g, p.factor(), 1.0, {});
  p.options.act_order = true;
  const HostMatrix by_size = upstream_target(p.w, p.g, p.factor(), 1.0, {});
  for (std::size_t i = 0; i < by_index.values.size(); ++i) {
    EXPECT_FLOAT_EQ(by_size.values[i], by_index.values[i]);
  }
}

TEST(UpstreamTarget, HasTheSameBitsOnAnyNumberOfThreads) {
  const Problem p;
  const ParallelFor two = [](std::int64_t count, const auto& body) {
    std::thread other([&] { body(count / 3, count); });
    body(0, count / 3);
    other.join();
  };
  SquareMatrix g(kCols);
  accumulate_products(g, Problem::view(p.off), Problem::view(p.x), two);
  EXPECT_EQ(g.values, p.g.values);
  EXPECT_EQ(upstream_target(p.w, p.g, p.factor(), 0.5, two).values,
            upstream_target(p.w, p.g, p.factor(), 0.5, {}).values);
}

// ---- the sums -----------------------------------------------------------------------------------

TEST(AccumulateProducts, SumOuterProductsExactly) {
  // Small integers, sizes across the edges of blocks, in two pieces.
  constexpr std::int64_t kSize = 130, kCount = 131;
  std::vector<float> left = random_values(kCount * kSize, 4),
                     right = random_values(kCount * kSize, 5);
  for (auto* values : {&left, &right}) {
    for (float& value : *values) value = std::round(value * 3);
  }
  SquareMatrix found(kSize);
  const auto rows = [](std::vector<float>& values, std::int64_t begin, std::int64_t count) {
    return MatrixView<const float>{values.data() + begin * kSize, count, kSize, kSize};
  };
  accumulate_products(found, rows(left, 0, 30), rows(right, 0, 30), {});
  accumulate_products(found, rows(left, 30, kCount - 30), rows(right, 30, kCount - 30), {});
  for (std::int64_t i = 0; i < kSize; ++i) {
    for (std::int64_t j = 0; j < kSize; ++j) {
      double sum = 0;
      for (std::int64_t t = 0; t < kCount; ++t) {
        sum += static_cast<double>(left[static_cast<std::size_t>(t * kSize + i)]) *
               right[static_cast<std::size_t>(t * kSize + j)];
      }
      ASSERT_EQ(found.row(i)[j], sum) << i << ", " << j;
    }
  }
}

}  // namespace
}  // namespace fut
