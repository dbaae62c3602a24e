// Hadamard matrices of every order that is built, and rotations of every kind of size: orthogonal,
// even where they claim to be, and a function of size and seed alone.
#include "loader/hadamard.h"

#include <cmath>
#include <gtest/gtest.h>
#include <vector>

#include "kernels/error.h"

namespace fut {
namespace {

// R itself: what it does to the rows of the identity.
std::vector<double> matrix_of(const Rotation& rotation) {
  const std::int64_t n = rotation.size();
  std::vector<double> rows(static_cast<std::size_t>(n * n));
  for (std::int64_t i = 0; i < n; ++i) rows[static_cast<std::size_t>(i * n + i)] = 1;
  rotation.apply({rows.data(), n, n, n});
  return rows;
}

double at(const std::vector<double>& m, std::int64_t n, std::int64_t i, std::int64_t j) {
  return m[static_cast<std::size_t>(i * n + j)];
}

double row_product(const std::vector<double>& m, std::int64_t n, std::int64_t i, std::int64_t j) {
  double sum = 0;
  for (std::int64_t k = 0; k < n; ++k) sum += at(m, n, i, k) * at(m, n, j, k);
  return sum;
}

TEST(Hadamard, SmallMatricesAreHadamardMatrices) {
  for (const int order : {1, 12, 20, 28}) {
    const std::vector<std::int8_t> h = small_hadamard(order);
    ASSERT_EQ(h.size(), static_cast<std::size_t>(order * order));
    for (int i = 0; i < order; ++i) {
      for (int j = 0; j < order; ++j) {
        int sum = 0;
        for (int k = 0; k < order; ++k) {
          sum += h[static_cast<std::size_t>(i * order + k)] *
                 h[static_cast<std::size_t>(j * order + k)];
        }
        EXPECT_EQ(std::abs(h[static_cast<std::size_t>(i * order + j)]), 1) << order;
        EXPECT_EQ(sum, i == j ? order : 0) << order << ": rows " << i << " and " << j;
      }
    }
  }
}

TEST(Hadamard, OtherOrdersAreRefused) {
  for (const int order : {0, 2, 16, 24, 36}) EXPECT_THROW((void)small_hadamard(order), Error);
}

TEST(Hadamard, SizesOfLlamaModelsHaveOne) {
  // Heads, hidden sizes, intermediate sizes; 12 * 256, 20 * 256 and 28 * 512 among them.
  for (const std::int64_t size : {1, 64, 128, 384, 2048, 3072, 4096, 5120, 8192, 14336}) {
    EXPECT_TRUE(Rotation(size, 1).is_hadamard()) << size;
  }
  for (const std::int64_t size : {3, 6, 36, 100, 2304}) {
    EXPECT_FALSE(Rotation(size, 1).is_hadamard()) << size;
  }
}

// An entry passes through at most k + m additions and two products; a check of n products doubles
// what is left.
TEST(Hadamard, RotationsAreOrthogonal) {
  for (const std::int64_t n : {1, 2, 3, 6, 7, 12, 20, 28, 36, 48, 100, 128, 280, 384}) {
    const std::vector<double> r = matrix_of(Rotation(n, 5));
    const double bound = static_cast<double>(3 * n + 10) * 0x1p-53;
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j <= i; ++j) {
        ASSERT_NEAR(row_product(r, n, i, j), i == j ? 1.0 : 0.0, bound) << n << ": " << i << j;
      }
    }
  }
}

TEST(Hadamard, PowersOfFourAreExact) {
  for (const std::int64_t n : {4, 16, 64}) {
    const std::vector<double> r = matrix_of(Rotation(n, 6));
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        EXPECT_EQ(std::fabs(at(r, n, i, j)), 1.0 / std::sqrt(static_cast<double>(n)));
        EXPECT_EQ(row_product(r, n, i, j), i == j ? 1.0 : 0.0);
      }
    }
  }
}

TEST(Hadamard, EveryChannelGetsTheSameShareOfAnOutlier) {
  for (const std::int64_t n : {128, 384, 160, 448}) {
    const std::vector<double> r = matrix_of(Rotation(n, 7));
    const double share = 1.0 / std::sqrt(static_cast<double>(n));
    for (const double entry : r) ASSERT_NEAR(std::fabs(entry), share, 4 * 0x1p-53) << n;
  }
}

TEST(Hadamard, RowsAreRotatedOneByOne) {
  for (const std::int64_t n : {16, 24, 36}) {
    const Rotation rotation(n, 8);
    std::vector<double> together(static_cast<std::size_t>(3 * n));
    for (std::size_t i = 0; i < together.size(); ++i) {
      together[i] = std::sin(static_cast<double>(i));
    }
    std::vector<double> alone = together;
    rotation.apply({together.data(), 3, n, n});
    for (std::int64_t r = 0; r < 3; ++r) rotation.apply({alone.data() + r * n, 1, n, n});
    EXPECT_EQ(together, alone) << n;
  }
}

TEST(Hadamard, SeedAndSizeDecideEverything) {
  for (const std::int64_t n : {64, 24, 36, 5}) {
    const std::vector<double> first = matrix_of(Rotation(n, 1));
    EXPECT_EQ(first, matrix_of(Rotation(n, 1))) << n;
    EXPECT_NE(first, matrix_of(Rotation(n, 2))) << n;
    EXPECT_NE(first, matrix_of(Rotation(n, std::uint64_t{1} << 32))) << n;
  }
}

// The signs of seed 1: folders that were quantised once have to be made again bit by bit.
TEST(Hadamard, KnownSigns) {
  const std::vector<double> r = matrix_of(Rotation(16, 1));
  std::vector<int> signs;
  for (std::int64_t i = 0; i < 16; ++i) signs.push_back(at(r, 16, i, 0) > 0 ? 1 : -1);
  EXPECT_EQ(signs, (std::vector<int>{1, 1, 1, 1, 1, 1, -1, 1, 1, 1, 1, 1, -1, -1, 1, 1}));
}

}  // namespace
}  // namespace fut
