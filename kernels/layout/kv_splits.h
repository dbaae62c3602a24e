// How decode cuts a sequence's keys: the query at position t sees blocks of 16 positions, 0 .. t / 16,
// and these fall into neighbouring splits, whose number follows from that of the blocks alone. Each split is attended to in order, and
// the splits' results are merged as a balanced binary tree. So the same bits come out whichever warps,
// blocks or clusters hold the splits, as long as each takes an aligned power of two of them. Standard
// C++ only, constexpr throughout.
//
//   64 splits, 128 blocks: split 0 holds blocks 0 and 1, ... split 63 blocks 126 and 127
//   64 splits, 2 blocks: split 31 holds block 0, split 63 block 1, and the others are empty
//
// Long sequences have twice as many, so that more warps can share one of them: a warp goes through its
// keys at its own pace, however idle the chip is.
#pragma once

#include <cstdint>

#include "kernels/layout/kv_page_int4.h"

namespace fut::layout {

inline constexpr int kLog2KvSplits = 6;
inline constexpr int kLog2LongKvSplits = 7;
inline constexpr int kNumKvSplits = 1 << kLog2KvSplits;
inline constexpr int kMaxKvSplits = 1 << kLog2LongKvSplits;
inline constexpr int kLongKvBlocks = 1024;  // from here on: 16,369 tokens

// The blocks that the query at `position` sees; the last one is that of its own key.
[[nodiscard]] constexpr int num_kv_blocks(int position) {
  return position / KvPageInt4::kBlockTokens + 1;
}

// Powers of two, so that cutting up needs no division.
[[nodiscard]] constexpr int log2_kv_splits(int num_blocks) {
  return num_blocks < kLongKvBlocks ? kLog2KvSplits : kLog2LongKvSplits;
}
[[nodiscard]] constexpr int num_kv_splits(int num_blocks) {
  return 1 << log2_kv_splits(num_blocks);
}

// The first block of a split, and the one past its last: kv_split_begin(split + 1, ...). Less than 2^24
// blocks.
[[nodiscard]] constexpr int kv_split_begin(int split, int num_blocks) {
  return num_blocks * split >> log2_kv_splits(num_blocks);
}

namespace proof {

constexpr bool splits_cover(int num_blocks) {
  const int splits = num_kv_splits(num_blocks);
  for (int s = 0; s < splits; ++s) {
    if (kv_split_begin(s, num_blocks) > kv_split_begin(s + 1, num_blocks)) return false;
  }
  return kv_split_begin(0, num_blocks) == 0 && kv_split_begin(splits, num_blocks) == num_blocks;
}

static_assert(num_kv_splits(kLongKvBlocks - 1) == kNumKvSplits &&
                  num_kv_splits(kLongKvBlocks) == kMaxKvSplits,
              "splits of short and of long sequences");
static_assert(splits_cover(1) && splits_cover(2) && splits_cover(63) && splits_cover(64) &&
                  splits_cover(65) && splits_cover(1023) && splits_cover(1024) &&
                  splits_cover(8192) && splits_cover((1 << 24) - 1),
              "every block stands in one split");
static_assert(num_kv_blocks(0) == 1 && num_kv_blocks(15) == 1 && num_kv_blocks(16) == 2 &&
                  num_kv_blocks(131071) == 8192,
              "blocks that a query sees");
// The query's own block is always the last split's, and that is where keys are appended.
static_assert(kv_split_begin(63, 1) == 0 && kv_split_begin(63, 2) == 1 &&
                  kv_split_begin(63, 63) == 62 && kv_split_begin(127, 8192) == 8128,
              "the last split is never empty");
static_assert(kv_split_begin(31, 2) == 0 && kv_split_begin(32, 2) == 1, "two blocks");

}  // namespace proof

}  // namespace fut::layout
