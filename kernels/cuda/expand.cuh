// What a block of expand does: one strip of 16 packed rows of INT4 codes to E4M3, the rows' scales first, then
// 64 columns at a time for each warp, whose rows leave it as runs of 64 bytes. Launched by expand.cu, run on
// the CPU by its test.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/layout/int4_tile.h"
#include "kernels/numeric/activation_scales.h"
#include "kernels/numeric/formats.h"
#include "kernels/ops.h"

namespace fut::cuda {

inline constexpr int kExpandWarps = 8;
inline constexpr int kExpandThreads = 32 * kExpandWarps;

// Shared memory: a factor for each row of the strip, then for each warp [row][64 columns]; rows longer than
// 64 bytes, so that those of a warp begin in different banks.
inline constexpr int kExpandStagedRow = layout::Int4Tile::kBlockCols + 16;
inline constexpr int kExpandFactorBytes = 4 * layout::Int4Tile::kStripRows;
inline constexpr int kExpandStagedBytes = kExpandStagedRow * layout::Int4Tile::kStripRows;
inline constexpr int kExpandSharedBytes = kExpandFactorBytes + kExpandWarps * kExpandStagedBytes;
static_assert(kExpandThreads % layout::Int4Tile::kStripRows == 0 && kExpandFactorBytes % 16 == 0 &&
              kExpandStagedBytes % 16 == 0);

struct Expansion {
  ExpandArgs args;
  int columns_per_scale;

  explicit Expansion(const ExpandArgs& a)
      : args(a),
        columns_per_scale(
            a.num_column_scales == 0 ? 1 : static_cast<int>(a.weight.cols) / a.num_column_scales) {}

  [[nodiscard]] __device__ float column_factor(int column) const {
    return args.column_scales == nullptr
               ? 1.0F
               : 1.0F / __ldg(args.column_scales + column / columns_per_scale);
  }
  [[nodiscard]] __device__ float scale(int packed_row, int group) const {
    return bf16_to_f32(__ldg(reinterpret_cast<const std::uint16_t*>(
        args.weight.packed + args.weight.tile.scale_offset(packed_row, group))));
  }
  // The largest scale of a row, over the groups and columns that are this thread's among `threads`.
  [[nodiscard]] __device__ float largest_scale(int packed_row, int first, int threads) const {
    const layout::Int4Tile& tile = args.weight.tile;
    float largest = 0;
    if (args.column_scales == nullptr) {
      for (int group = first; group < tile.num_groups(); group += threads) {
        largest = fmaxf(largest, fabsf(scale(packed_row, group)));
      }
      return largest;
    }
    // Columns that share both scales are whole tiles.
    for (int t = first; t < tile.cols / layout::Int4Tile::kTileCols; t += threads) {
      const int column = t * layout::Int4Tile::kTileCols;
      largest =
          fmaxf(largest, fabsf(scale(packed_row, column / tile.group) * column_factor(column)));
    }
    return largest;
  }
};

// The code in bits 4 * nibble and up of a word, exactly.
__device__ __forceinline__ float code_of(std::uint32_t word, int nibble) {
  constexpr std::uint32_t kTwoTo23 = 0x4B000000U;  // whose last fraction bits are a small integer
  const std::uint32_t stored = word >> 4 * nibble & 0xFU;
  return __uint_as_float(kTwoTo23 | stored) - (0x1p23F + layout::kInt4CodeBias);
}

// A lane's codes of tile `tile` of 64 columns, to their places in [row][64 columns].
template <class Factor>
__device__ __forceinline__ void stage_tile(std::uint32_t word, int tile, const Factor& factor,
                                           std::uint8_t* staged) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      // Those of lane 0; the other lanes' lie as far from their own first element.
      const int low = layout::int4_fragment_slot(8 * half, 8 * pair).nibble;
      const int high = layout::int4_fragment_slot(8 * half, 8 * pair + 1).nibble;
      const layout::Int4Coord place = layout::int4_fragment_coord({lane, low});
      const std::uint16_t codes =
          ptx::e4m3x2(code_of(word, low) * factor(half), code_of(word, high) * factor(half));
      *reinterpret_cast<std::uint16_t*>(staged + place.row * kExpandStagedRow +
                                        layout::Int4Tile::kTileCols * tile + place.col) = codes;
    }
  }
}

class StripExpansion {
 public:
  using Tile = layout::Int4Tile;
  static constexpr int kRows = Tile::kStripRows;

  __device__ StripExpansion(const Expansion& e, std::uint8_t* shared)
      : e_(e),
        inverses_(reinterpret_cast<float*>(shared)),
        staged_(shared + kExpandFactorBytes + threadIdx.x / 32 * kExpandStagedBytes) {}

  __device__ void run() const {
    set_row_scales();
    __syncthreads();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    for (int block = warp; block < e_.args.weight.tile.cols / Tile::kBlockCols;
         block += kExpandWarps) {
      expand_block(block);
    }
  }

 private:
  // All threads: scales of the strip's rows.
  __device__ void set_row_scales() const {
    constexpr int kThreadsOfRow = kExpandThreads / kRows;
    const int r = static_cast<int>(threadIdx.x) / kThreadsOfRow;
    const int packed_row = packed_row_of(r);
    float largest =
        e_.largest_scale(packed_row, static_cast<int>(threadIdx.x) % kThreadsOfRow, kThreadsOfRow);
#pragma unroll
    for (int distance = kThreadsOfRow / 2; distance > 0; distance /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, distance));
    }
    if (threadIdx.x % kThreadsOfRow != 0) return;
    const float scale = expanded_row_scale(largest);
    inverses_[r] = 1.0F / scale;
    const int row = e_.args.weight.order.source_row(packed_row);
    if (row != layout::RowOrder::kNoRow) e_.args.row_scales[row] = scale;
  }

  // A warp: columns 64 * block and up.
  __device__ void expand_block(int block) const {
    const Tile& tile = e_.args.weight.tile;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int column = block * Tile::kBlockCols;
    const int group = column / tile.group;
    const uint4 words = __ldcs(reinterpret_cast<const uint4*>(
        e_.args.weight.packed + tile.slot(packed_row_of(0), column).word + 16 * lane));
    const int r = layout::int4_fragment_coord({lane, 0}).row;
    const float factors[] = {e_.scale(packed_row_of(r), group) * inverses_[r],
                             e_.scale(packed_row_of(r + 8), group) * inverses_[r + 8]};
    const std::uint32_t tiles[] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float by_column = e_.column_factor(column + t * Tile::kTileCols);
      stage_tile(
          tiles[t], t, [&](int half) { return factors[half] * by_column; }, staged_);
    }
    __syncwarp();
    constexpr int kPieces = Tile::kBlockCols / 16;
#pragma unroll
    for (int i = 0; i < kRows * kPieces / 32; ++i) {
      const int piece = lane + 32 * i;
      const int row = e_.args.weight.order.source_row(packed_row_of(piece / kPieces));
      if (row == layout::RowOrder::kNoRow) continue;
      *reinterpret_cast<uint4*>(e_.args.codes + std::int64_t{row} * tile.cols + column +
                                16 * (piece % kPieces)) =
          *reinterpret_cast<const uint4*>(staged_ + piece / kPieces * kExpandStagedRow +
                                          16 * (piece % kPieces));
    }
    __syncwarp();  // before the next block is staged
  }

  [[nodiscard]] __device__ static int packed_row_of(int r) {
    return kRows * static_cast<int>(blockIdx.x) + r;
  }

  const Expansion& e_;
  float* inverses_;       // [16], of the row scales
  std::uint8_t* staged_;  // this warp's
};

}  // namespace fut::cuda
