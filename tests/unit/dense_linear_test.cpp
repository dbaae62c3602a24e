// Products, Hessians, Cholesky factors and triangular inverses: exact where numbers allow it,
// within the textbook's bounds otherwise (Higham, Accuracy and Stability, chapters 3, 8 and 10),
// and the same bits however the work is shared.
#include "loader/dense_linear.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <thread>

namespace fut {
namespace {

// Sizes on both sides of every edge: register tile, packed panel, block.
constexpr std::int64_t kSizes[] = {1, 2, 5, 8, 64, 127, 128, 129, 300};

// Rounding error of n operations in a row, relative.
double gamma(std::int64_t n) {
  const double nu = static_cast<double>(n) * 0x1p-53;
  return nu / (1 - nu);
}

// Pieces of uneven size on two threads, the last piece first.
void two_threads(std::int64_t count, const std::function<void(std::int64_t, std::int64_t)>& body) {
  const std::int64_t cut = count / 3;
  std::thread other([&] { body(cut, count); });
  body(0, cut);
  other.join();
}

std::vector<double> random_values(std::int64_t count, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = normal(engine);
  return values;
}

std::vector<double> random_integers(std::int64_t count, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<int> small(-8, 8);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = small(engine);
  return values;
}

// The definition, k ascending.
std::vector<double> product(std::vector<double> c, const std::vector<double>& a,
                            const std::vector<double>& b, std::int64_t m, std::int64_t n,
                            std::int64_t k) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = c[static_cast<std::size_t>(i * n + j)];
      for (std::int64_t l = 0; l < k; ++l) {
        sum += a[static_cast<std::size_t>(i * k + l)] * b[static_cast<std::size_t>(l * n + j)];
      }
      c[static_cast<std::size_t>(i * n + j)] = sum;
    }
  }
  return c;
}

SquareMatrix square_product(const SquareMatrix& a, const SquareMatrix& b) {
  SquareMatrix c(a.size);
  c.values = product(c.values, a.values, b.values, a.size, a.size, a.size);
  return c;
}

SquareMatrix transposed(const SquareMatrix& a) {
  SquareMatrix t(a.size);
  for (std::int64_t i = 0; i < a.size; ++i) {
    for (std::int64_t j = 0; j < a.size; ++j) t.row(j)[i] = a.row(i)[j];
  }
  return t;
}

SquareMatrix absolute(SquareMatrix a) {
  for (double& value : a.values) value = std::fabs(value);
  return a;
}

// Small integers below the diagonal, powers of two on it.
SquareMatrix integer_lower(std::int64_t size, std::uint32_t seed) {
  SquareMatrix l(size);
  l.values = random_integers(size * size, seed);
  for (std::int64_t i = 0; i < size; ++i) {
    l.row(i)[i] = std::ldexp(1.0, static_cast<int>(i % 3));
    for (std::int64_t j = i + 1; j < size; ++j) l.row(i)[j] = 0;
  }
  return l;
}

// Well conditioned: A A^T + size * I.
SquareMatrix positive_definite(std::int64_t size, std::uint32_t seed) {
  SquareMatrix a(size);
  a.values = random_values(size * size, seed);
  SquareMatrix h = square_product(a, transposed(a));
  for (std::int64_t i = 0; i < size; ++i) {
    h.row(i)[i] += static_cast<double>(size);
    for (std::int64_t j = 0; j < i; ++j) h.row(j)[i] = h.row(i)[j];
  }
  return h;
}

// ---- products -----------------------------------------------------------------------------------

TEST(DenseLinear, ProductIsTheDefinitionToTheLastBit) {
  for (const std::int64_t m : {1, 3, 4, 9}) {
    for (const std::int64_t n : {1, 7, 8, 64, 71}) {
      for (const std::int64_t k : {1, 5, 128, 131}) {
        for (const auto& values : {&random_integers, &random_values}) {
          const std::vector<double> a = values(m * k, 1), b = values(k * n, 2);
          std::vector<double> c = values(m * n, 3);
          const std::vector<double> expected = product(c, a, b, m, n, k);
          add_product({c.data(), m, n, n}, {a.data(), m, k, k}, {b.data(), k, n, n});
          EXPECT_EQ(c, expected) << m << " x " << n << " x " << k;
        }
      }
    }
  }
}

TEST(DenseLinear, ProductTouchesNothingBesideItsView) {
  constexpr std::int64_t kStride = 20;
  const std::vector<double> a = random_integers(5 * kStride, 4),
                            b = random_integers(9 * kStride, 5);
  std::vector<double> c = random_integers(5 * kStride, 6);
  const std::vector<double> before = c;
  add_product({c.data() + 3, 5, 11, kStride}, {a.data(), 5, 9, kStride},
              {b.data() + 1, 9, 11, kStride});
  for (std::int64_t i = 0; i < 5; ++i) {
    for (std::int64_t j = 0; j < kStride; ++j) {
      double sum = before[static_cast<std::size_t>(i * kStride + j)];
      for (std::int64_t k = 0; k < 9 && j >= 3 && j < 14; ++k) {
        sum += a[static_cast<std::size_t>(i * kStride + k)] *
               b[static_cast<std::size_t>(k * kStride + 1 + j - 3)];
      }
      EXPECT_EQ(c[static_cast<std::size_t>(i * kStride + j)], sum) << i << ", " << j;
    }
  }
}

TEST(DenseLinear, EmptySumsAddNothing) {
  std::vector<double> c = {1, 2, 3, 4};
  add_product({c.data(), 2, 2, 2}, {nullptr, 2, 0, 0}, {nullptr, 0, 2, 2});
  EXPECT_EQ(c, (std::vector<double>{1, 2, 3, 4}));
}

TEST(DenseLinear, ScaledAdditionIsTheDefinition) {
  for (const std::int64_t count : {0, 1, 3, 4, 11}) {
    const std::vector<double> x = random_values(count, 7);
    std::vector<double> y = random_values(count + 1, 8);
    std::vector<double> expected = y;
    for (std::size_t i = 0; i < x.size(); ++i) expected[i] += 0.3 * x[i];
    add_scaled(y.data(), 0.3, x.data(), count);
    EXPECT_EQ(y, expected) << count;
  }
}

// ---- Hessians -----------------------------------------------------------------------------------

TEST(DenseLinear, HessianIsTheSumOfOuterProducts) {
  for (const std::int64_t n : {3, 128, 150}) {
    constexpr std::int64_t kTokens = 261;  // two packed blocks and a bit
    std::vector<float> x;
    for (const double value : random_values(kTokens * n, 9)) x.push_back(static_cast<float>(value));
    SquareMatrix h(n);
    accumulate_hessian(h, {x.data(), kTokens, n, n}, {});
    mirror_lower(h);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (std::int64_t t = 0; t < kTokens; ++t) {
          sum += static_cast<double>(x[static_cast<std::size_t>(t * n + i)]) *
                 x[static_cast<std::size_t>(t * n + j)];
        }
        ASSERT_EQ(h.row(i)[j], sum) << n << ": " << i << ", " << j;
      }
    }
  }
}

TEST(DenseLinear, HessianDoesNotDependOnHowTokensAreHandedOver) {
  constexpr std::int64_t kSize = 140, kTokens = 300;
  std::vector<float> x;
  for (const double value : random_values(kTokens * kSize, 10)) {
    x.push_back(static_cast<float>(value));
  }
  SquareMatrix whole(kSize), pieces(kSize);
  accumulate_hessian(whole, {x.data(), kTokens, kSize, kSize}, {});
  for (const auto& [first, count] :
       {std::pair<std::int64_t, std::int64_t>{0, 1}, {1, 199}, {200, 100}}) {
    accumulate_hessian(pieces, {x.data() + first * kSize, count, kSize, kSize}, two_threads);
  }
  mirror_lower(whole);
  mirror_lower(pieces);
  EXPECT_EQ(whole.values, pieces.values);
}

// ---- factors ------------------------------------------------------------------------------------

TEST(DenseLinear, CholeskyFindsAnIntegerFactorExactly) {
  for (const std::int64_t n : kSizes) {
    const SquareMatrix l = integer_lower(n, 11);
    SquareMatrix a = square_product(l, transposed(l));
    EXPECT_EQ(cholesky_lower(a, {}), std::nullopt) << n;
    EXPECT_EQ(a.values, l.values) << n;
  }
}

TEST(DenseLinear, CholeskyReadsTheLowerTriangleAlone) {
  const SquareMatrix l = integer_lower(70, 12);
  SquareMatrix a = square_product(l, transposed(l));
  for (std::int64_t i = 0; i < a.size; ++i) {
    for (std::int64_t j = i + 1; j < a.size; ++j) {
      a.row(i)[j] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  EXPECT_EQ(cholesky_lower(a, {}), std::nullopt);
  EXPECT_EQ(a.values, l.values);
}

TEST(DenseLinear, CholeskyReportsThePivotThatFails) {
  for (const std::int64_t n : {3, 129, 260}) {
    for (const double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity()}) {
      SquareMatrix a(n);
      for (std::int64_t i = 0; i < n; ++i) a.row(i)[i] = 1;
      a.row(n - 2)[n - 2] = bad;
      SquareMatrix copy = a;
      EXPECT_EQ(cholesky_lower(copy, {}), n - 2) << n << ", " << bad;
      EXPECT_EQ(inverse_upper_factor(a, {}), n - 2) << n << ", " << bad;
    }
  }
  SquareMatrix singular(2);
  singular.values = {4, 2, 2, 1};
  EXPECT_EQ(cholesky_lower(singular, {}), 1);
}

// Substitution solves a system whose matrix is off by gamma(n) |L|; checking it adds as much.
TEST(DenseLinear, InverseOfATriangleIsOne) {
  for (const std::int64_t n : kSizes) {
    SquareMatrix l = positive_definite(n, 13);
    ASSERT_EQ(cholesky_lower(l, {}), std::nullopt);
    SquareMatrix inverse = l;
    invert_lower(inverse, {});
    const SquareMatrix identity = square_product(l, inverse);
    const SquareMatrix sizes = square_product(absolute(l), absolute(inverse));
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        ASSERT_NEAR(identity.row(i)[j], i == j ? 1.0 : 0.0, 2 * gamma(n) * sizes.row(i)[j])
            << n << ": " << i << ", " << j;
        if (j > i) {
          ASSERT_EQ(inverse.row(i)[j], 0.0) << "not lower";
        }
      }
    }
  }
}

// U H U^T = I. With H = M M^T, row k of |M| is at most sqrt(H_kk) long, so each of five sources
// (factor, inverse on either side, two products of the check) is off by at most
// gamma(n + 1) * (sum_k |U_ik| sqrt(H_kk)) * (sum_k |U_jk| sqrt(H_kk)).
TEST(DenseLinear, UpperFactorInvertsTheHessian) {
  for (const std::int64_t n : kSizes) {
    const SquareMatrix h = positive_definite(n, 14);
    SquareMatrix u = h;
    ASSERT_EQ(inverse_upper_factor(u, {}), std::nullopt);
    const SquareMatrix identity = square_product(square_product(u, h), transposed(u));
    std::vector<double> size(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t k = 0; k < n; ++k) {
        size[static_cast<std::size_t>(i)] += std::fabs(u.row(i)[k]) * std::sqrt(h.row(k)[k]);
      }
    }
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const double bound = 5 * gamma(n + 1) * size[static_cast<std::size_t>(i)] *
                             size[static_cast<std::size_t>(j)];
        ASSERT_NEAR(identity.row(i)[j], i == j ? 1.0 : 0.0, bound) << n << ": " << i << ", " << j;
        if (j < i) {
          ASSERT_EQ(u.row(i)[j], 0.0) << "not upper";
        }
      }
    }
  }
}

TEST(DenseLinear, UpperFactorOfADiagonalIsItsInverseRoot) {
  SquareMatrix h(5);
  for (std::int64_t i = 0; i < 5; ++i) h.row(i)[i] = std::ldexp(1.0, static_cast<int>(2 * i));
  ASSERT_EQ(inverse_upper_factor(h, {}), std::nullopt);
  for (std::int64_t i = 0; i < 5; ++i) {
    for (std::int64_t j = 0; j < 5; ++j) {
      EXPECT_EQ(h.row(i)[j], i == j ? std::ldexp(1.0, static_cast<int>(-i)) : 0.0);
    }
  }
}

TEST(DenseLinear, FactorsAreTheSameBitsHoweverTheWorkIsShared) {
  const SquareMatrix h = positive_definite(300, 15);
  SquareMatrix alone = h, shared = h;
  ASSERT_EQ(inverse_upper_factor(alone, {}), std::nullopt);
  ASSERT_EQ(inverse_upper_factor(shared, two_threads), std::nullopt);
  EXPECT_EQ(alone.values, shared.values);
}

}  // namespace
}  // namespace fut
