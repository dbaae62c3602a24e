// The rotation of queries and keys: Sylvester's matrix, orthogonal, its own inverse, block by block.
#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <vector>

#include "kernels/numeric/hadamard.h"
#include "tests/support/backends.h"

namespace fut::test {
namespace {

// Element [row, col] of the matrix before it is normalised: -1 where the two have an odd number of
// bits in common.
int sylvester(int row, int col) {
  return std::popcount(static_cast<unsigned>(row & col)) % 2 == 0 ? 1 : -1;
}

TEST(Rotation, BlocksArePowersOfTwoThatDivideTheHead) {
  EXPECT_TRUE(is_rotation_block(2, 64));
  EXPECT_TRUE(is_rotation_block(64, 64));
  EXPECT_TRUE(is_rotation_block(32, 96));
  for (const int block : {-2, 0, 1, 3, 24, 48, 128}) EXPECT_FALSE(is_rotation_block(block, 64));
}

// Blocks of 4, 16, 64: the norm is a power of two and small integers stay exact.
TEST(Rotation, IsSylvestersMatrixOverTheRootOfItsSize) {
  for (const int block : {4, 16, 64}) {
    const std::vector<float> v = integer_values(128, 1, 100);
    std::vector<float> rotated = v;
    hadamard_blocks(rotated.data(), 128, block);
    for (int i = 0; i < 128; ++i) {
      const int first = i / block * block;
      double sum = 0;
      for (int k = 0; k < block; ++k) {
        sum +=
            sylvester(i - first, k) * static_cast<double>(v[static_cast<std::size_t>(first + k)]);
      }
      EXPECT_EQ(rotated[static_cast<std::size_t>(i)],
                static_cast<float>(sum / std::sqrt(static_cast<double>(block))));
    }
  }
}

// A rotation rounds each term log2(block) + 2 times: its additions, the norm, the product. With S the
// sum of a block's sizes, the first leaves each output off by S / sqrt(block) times that, which the
// second turns into S times that, and adds as much of its own.
TEST(Rotation, IsItsOwnInverseWithinItsRoundings) {
  for (const int block : {2, 8, 32, 64, 128}) {
    const std::vector<float> v = normal_values(128, 2);
    std::vector<float> twice = v;
    hadamard_blocks(twice.data(), 128, block);
    hadamard_blocks(twice.data(), 128, block);
    const int roundings = 2 * (std::countr_zero(static_cast<unsigned>(block)) + 2);
    for (int first = 0; first < 128; first += block) {
      double size = 0;
      for (int k = 0; k < block; ++k) {
        size += std::fabs(static_cast<double>(v[static_cast<std::size_t>(first + k)]));
      }
      for (int k = first; k < first + block; ++k) {
        // n * u / (1 - n * u), generously.
        const double relative = roundings * kUnitRoundoff / (1 - 2 * roundings * kUnitRoundoff);
        EXPECT_NEAR(twice[static_cast<std::size_t>(k)], v[static_cast<std::size_t>(k)],
                    size * relative);
      }
    }
  }
}

}  // namespace
}  // namespace fut::test
