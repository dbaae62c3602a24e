// How the sum over the inputs of an INT4 matrix is cut: the groups of a row fall into a fixed number
// of segments, each is summed in order, and the segments' sums are added as a balanced binary tree.
// So the same bits come out whichever warps, blocks or clusters hold the segments, as long as each
// takes a power of two of them, and at every batch size. Standard C++ only, constexpr throughout.
//
//   16 segments, 32 groups: segment 0 holds groups 0 and 1, ... segment 15 groups 30 and 31
//   16 segments, 3 groups: segment 5 holds group 0, segment 10 group 1, segment 15 group 2, and the
//     others are empty and count as +0
#pragma once

#include <array>

namespace fut::layout {

inline constexpr int kNumKSegments = 16;

// The first group of a segment, and the one past its last: segment_begin(segment + 1, ...).
[[nodiscard]] constexpr int k_segment_begin(int segment, int num_groups) {
  return num_groups * segment / kNumKSegments;
}

// ((s0 + s1) + (s2 + s3)) + ... in float32.
[[nodiscard]] constexpr float merge_k_segments(std::array<float, kNumKSegments> sums) {
  for (int count = kNumKSegments / 2; count >= 1; count /= 2) {
    for (int i = 0; i < count; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  return sums[0];
}

namespace proof {

constexpr bool segments_cover(int num_groups) {
  for (int s = 0; s < kNumKSegments; ++s) {
    if (k_segment_begin(s, num_groups) > k_segment_begin(s + 1, num_groups)) return false;
  }
  return k_segment_begin(0, num_groups) == 0 &&
         k_segment_begin(kNumKSegments, num_groups) == num_groups;
}

static_assert(segments_cover(1) && segments_cover(3) && segments_cover(16) && segments_cover(32) &&
                  segments_cover(112) && segments_cover(448),
              "every group stands in one segment");
static_assert(k_segment_begin(5, 3) == 0 && k_segment_begin(6, 3) == 1 &&
                  k_segment_begin(10, 3) == 1 && k_segment_begin(11, 3) == 2,
              "three groups");
static_assert(merge_k_segments({0x1p24F, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0}) ==
                  0x1p24F + 4,
              "neighbours meet first: one by one only 2^24 would be left");

}  // namespace proof

}  // namespace fut::layout
