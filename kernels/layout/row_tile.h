// Where weights and tokens of the row product of 9 to 32 tokens lie (cuda/row_tile_gemm.cuh). The columns of a
// step of the tensor core, and their order in it, are those of the product of fewer tokens
// (cuda/row_formats.cuh), so that both give the same bits. Standard C++ only, constexpr throughout.
//
// chunk    64 columns, of which lane 4g + t holds codes 16t .. 16t + 15 of a row, four for each of four
//          steps. Step j takes codes 16t + 4j and one more at places 2t, 2t + 1, the next two at 2t + 8, 2t + 9.
// weights  [strip of 16 rows][row][128 codes], swizzled: two chunks. A lane's rows are so chosen that
//          eight lanes that read 16 bytes each at a time use all banks.
// tokens   [chunk][token][64 numbers of 16 bits, step after step], swizzled: operand B of wgmma
#pragma once

#include "kernels/layout/prompt_tile.h"

namespace fut::layout {

inline constexpr int kRowTileStripRows = 16;
inline constexpr int kRowTileRowBytes =
    kPromptRowBytes;                      // in shared memory: one span of the swizzle
inline constexpr int kRowTileChunk = 64;  // columns
inline constexpr int kRowTileStripBytes = kRowTileStripRows * kRowTileRowBytes;
inline constexpr int kRowTileChunkBytes = 8 * kRowTileRowBytes;  // of eight tokens

// Rows tile_row(g) and 8 more of a strip are rows g and g + 8 of the tensor core's operand.
[[nodiscard]] constexpr int tile_row(int g) {
  return g / 2 + g % 2 * 4;
}

// Byte of a strip where lane 4g + t's codes of chunk 0 or 1 begin, of row tile_row(g).
[[nodiscard]] constexpr int tile_codes(int g, int t, int chunk) {
  return swizzled(tile_row(g), 64 * chunk + 16 * t);
}

// Byte of a chunk of tokens where columns `column` (of the chunk, a multiple of 4) and one more lie, with
// `pair` 1 the next two.
[[nodiscard]] constexpr int tile_operand(int token, int column, int pair) {
  const int t = column / 16;
  const int step = column % 16 / 4;
  return swizzled(token, 32 * step + 16 * pair + 4 * t);
}

namespace proof {

// The column at place k of step j.
constexpr int column_of_step(int j, int k) {
  return 16 * (k % 8 / 2) + 4 * j + k / 8 * 2 + k % 2;
}
constexpr bool operands_lie_in_steps() {
  for (int token = 0; token < 32; ++token) {
    for (int j = 0; j < 4; ++j) {
      for (int k = 0; k < 16; k += 2) {
        const int column = column_of_step(j, k);
        if (tile_operand(token, column / 4 * 4, column % 4 / 2) !=
            swizzled(token, 32 * j + 2 * k)) {
          return false;
        }
      }
    }
  }
  return true;
}
static_assert(operands_lie_in_steps(), "a step's 16 numbers of a token are 32 bytes in order");

constexpr bool lanes_use_all_banks() {
  for (int chunk = 0; chunk < 2; ++chunk) {
    for (int first = 0; first < 32; first += 8) {
      unsigned used = 0;
      for (int lane = first; lane < first + 8; ++lane) {
        used |= 1U << tile_codes(lane / 4, lane % 4, chunk) / 16 % 8;
      }
      if (used != 0xFF) return false;
    }
  }
  return true;
}
static_assert(lanes_use_all_banks(), "16 bytes of eight lanes without conflicts");
static_assert(tile_codes(5, 3, 1) == (tile_codes(5, 3, 0) ^ 64) &&
                  tile_codes(2, 1, 1) == (tile_codes(2, 1, 0) ^ 64),
              "the second chunk of a row");

}  // namespace proof

}  // namespace fut::layout
