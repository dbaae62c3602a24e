// Where the numbers of a prompt's matrix products lie while they are multiplied: weight rows in a stage
// of shared memory, bytes in the swizzle, sums in a thread's registers. Standard C++ only, constexpr
// throughout. What multiplies them: cuda/prompt_gemm.cuh.
//
// Spread order: of each 32 weight rows, row 8t + 2j + i lies at 8j + 2t + i of the stage. Lane 4g + t
// of a warp holds columns 8j + 2t + i of four neighbouring instructions' groups j of its sums: so its
// eight sums of 32 columns are eight neighbouring outputs, 16 bytes of BF16, 8 bytes of E4M3.
#pragma once

namespace fut::layout {

inline constexpr int kPromptRowBytes = 128;  // of each row in a stage: one span of the swizzle
inline constexpr int kPromptTileTokens = 128;
inline constexpr int kSpreadRows = 32;

// The weight row, of 32, that lies at `place` of a stage, and the way back.
[[nodiscard]] constexpr int spread_row(int place) {
  return 8 * (place / 2 % 4) + 2 * (place / 8) + place % 2;
}
[[nodiscard]] constexpr int spread_place(int row) {
  return 8 * (row / 2 % 4) + 2 * (row / 8) + row % 2;
}

// Byte of a stage where byte `byte` of the row at `place` lies, the swizzle of 128 bytes.
[[nodiscard]] constexpr int swizzled(int place, int byte) {
  return place * kPromptRowBytes + ((byte / 16) ^ (place % 8)) * 16 + byte % 16;
}

// Which sum, of 64 tokens and any number of weight rows, is register `i` of `thread` of a warpgroup.
struct PromptSum {
  int token = 0;
  int place = 0;  // of the weight row in the stage
  bool operator==(const PromptSum&) const = default;
};
[[nodiscard]] constexpr PromptSum prompt_sum(int thread, int i) {
  return {thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, i / 4 * 8 + thread % 4 * 2 + i % 2};
}
// The register with number `i` (0 .. 7) of a thread's eight neighbours in block `block` of 32 rows, of
// token g (half 0) or g + 8.
[[nodiscard]] constexpr int prompt_register(int block, int half, int i) {
  return 16 * block + 4 * (i / 2) + 2 * half + i % 2;
}
// Where of its 32 outputs a lane's number `i` of eight stands: with rows in spread order, or as they
// come.
[[nodiscard]] constexpr int prompt_output(bool spread, int lane, int i) {
  return spread ? 8 * (lane % 4) + i : 8 * (i / 2) + 2 * (lane % 4) + i % 2;
}

namespace proof {

constexpr bool eights_are_neighbours() {
  for (int thread = 0; thread < 128; ++thread) {
    for (int block = 0; block < 8; ++block) {
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 8; ++i) {
          const PromptSum sum = prompt_sum(thread, prompt_register(block, half, i));
          if (sum.token != thread / 32 * 16 + thread % 32 / 4 + 8 * half) return false;
          if (sum.place / kSpreadRows != block) return false;
          const int place = sum.place % kSpreadRows;
          if (spread_row(place) != prompt_output(true, thread % 32, i)) return false;
          if (place != prompt_output(false, thread % 32, i)) return false;
          if (spread_place(spread_row(place)) != place) return false;
        }
      }
    }
  }
  return true;
}
static_assert(eights_are_neighbours(), "a thread's eight sums are eight neighbouring outputs");

}  // namespace proof

}  // namespace fut::layout
