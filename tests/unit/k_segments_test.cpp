// The segments of a sum over K: every group in one of them, in order, and a tree whose shape does
// not depend on who adds which part of it.
#include "kernels/layout/k_segments.h"

#include <gtest/gtest.h>
#include <vector>

#include "tests/support/backends.h"

namespace fut::test {
namespace {

using layout::k_segment_begin;
using layout::kNumKSegments;

TEST(KSegments, HoldEveryGroupOnceInOrderAndEvenly) {
  for (int num_groups = 1; num_groups <= 500; ++num_groups) {
    EXPECT_EQ(k_segment_begin(0, num_groups), 0);
    EXPECT_EQ(k_segment_begin(kNumKSegments, num_groups), num_groups);
    for (int s = 0; s < kNumKSegments; ++s) {
      const int size = k_segment_begin(s + 1, num_groups) - k_segment_begin(s, num_groups);
      EXPECT_GE(size, num_groups / kNumKSegments);
      EXPECT_LE(size, num_groups / kNumKSegments + 1);
    }
  }
}

// Any power of two of neighbouring segments may be added first, by whoever holds them: here 1, 2, 4,
// 8 or all 16 of them at each of as many workers.
TEST(KSegments, GiveTheSameBitsWhoeverHoldsThem) {
  for (std::uint32_t seed = 1; seed <= 50; ++seed) {
    const std::vector<float> values = normal_values(kNumKSegments, seed);
    std::array<float, kNumKSegments> sums{};
    std::copy(values.begin(), values.end(), sums.begin());
    const float merged = layout::merge_k_segments(sums);
    for (std::size_t held = 1; held <= kNumKSegments; held *= 2) {
      std::vector<float> parts;  // one of each worker
      for (std::size_t first = 0; first < kNumKSegments; first += held) {
        std::vector<float> own(values.begin() + static_cast<std::ptrdiff_t>(first),
                               values.begin() + static_cast<std::ptrdiff_t>(first + held));
        for (; own.size() > 1; own.resize(own.size() / 2)) {
          for (std::size_t i = 0; i < own.size() / 2; ++i) own[i] = own[2 * i] + own[2 * i + 1];
        }
        parts.push_back(own[0]);
      }
      for (; parts.size() > 1; parts.resize(parts.size() / 2)) {
        for (std::size_t i = 0; i < parts.size() / 2; ++i) {
          parts[i] = parts[2 * i] + parts[2 * i + 1];
        }
      }
      EXPECT_EQ(parts[0], merged) << held << " segments a worker";
    }
  }
}

TEST(KSegments, AreNotAddedOneByOne) {
  std::array<float, kNumKSegments> sums{};
  sums.fill(1);
  sums[0] = 0x1p24F;
  float one_by_one = 0;
  for (const float v : sums) one_by_one += v;
  EXPECT_EQ(one_by_one, 0x1p24F);
  EXPECT_EQ(layout::merge_k_segments(sums),
            0x1p24F + 14);  // the first 1 is lost to 2^24, ties to even
}

}  // namespace
}  // namespace fut::test
