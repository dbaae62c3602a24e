// What becomes of quantised numbers: the stream of INT4 codes, E4M3 copies, and what rounding cost. The
// same bits as loader/packers.cpp and relative_error of engine/quantize_layer.cpp give.
#pragma once

#include <cstdint>

#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/int4_code.h"
#include "kernels/ops_offline.h"

namespace fut::cuda {

// ---- INT4 streams ---------------------------------------------------------------------------------

// Word `index` of the stream, which counts words of 4 bytes.
__device__ inline std::uint32_t packed_int4_word(const PackInt4Args& a, std::int64_t index) {
  const layout::Int4Tile& tile = a.tile;
  const std::int64_t byte = 4 * index;
  const int in_record = static_cast<int>(byte % tile.record_bytes());
  std::uint32_t word = 0;
  if (in_record >= tile.code_bytes()) {  // two scales
    const std::int64_t record = byte / tile.record_bytes();
    const int group = static_cast<int>(record % tile.num_groups());
    const int strip = static_cast<int>(record / tile.num_groups());
    for (int i = 0; i < 2; ++i) {
      const int in_strip = (in_record - tile.code_bytes()) / 2 + i;
      const int row = a.order.source_row(strip * layout::Int4Tile::kStripRows + in_strip);
      if (row == layout::RowOrder::kNoRow) continue;
      const std::uint16_t scale = a.scales[std::int64_t{row} * tile.num_groups() + group];
      word |= static_cast<std::uint32_t>(scale) << (16 * i);
    }
    return word;
  }
  for (int nibble = 0; nibble < 8; ++nibble) {
    const layout::Int4Coord at = tile.coord(byte, nibble);
    const int row = a.order.source_row(at.row);
    const int code =
        row == layout::RowOrder::kNoRow ? 0 : a.codes[std::int64_t{row} * tile.cols + at.col];
    word |= static_cast<std::uint32_t>(code + layout::kInt4CodeBias) << (4 * nibble);
  }
  return word;
}

// ---- errors ---------------------------------------------------------------------------------------

inline constexpr int kErrorRows = 32;  // of a warp
inline constexpr int kErrorCols = 32;  // that it loads at a time

struct ErrorTile {
  float weights[kErrorRows][kErrorCols + 1];
  std::int8_t codes[kErrorRows][kErrorCols + 4];  // 36: rows of lanes meet no bank twice
};

// Rows [first_row, first_row + 32), each of them by one lane from its first column to its last.
__device__ inline void sum_weighted_errors(const WeightedErrorsArgs& a, std::int64_t first_row,
                                           int lane, ErrorTile& tile) {
  const std::int64_t own_row = first_row + lane;
  const bool exists = own_row < a.w.rows;
  const std::int64_t groups = a.w.cols / a.group_size;
  double error = 0, energy = 0;
#pragma unroll 1
  for (std::int64_t col = 0; col < a.w.cols; col += kErrorCols) {
#pragma unroll 8
    for (int r = 0; r < kErrorRows; ++r) {
      const std::int64_t row = first_row + r < a.w.rows ? first_row + r : a.w.rows - 1;
      tile.weights[r][lane] = a.w.data[row * a.w.cols + col + lane];
      tile.codes[r][lane] = a.codes[row * a.w.cols + col + lane];
    }
    const std::int64_t row = exists ? own_row : a.w.rows - 1;
    const Int4Scale scale{a.scales[row * groups + col / a.group_size]};
    __syncwarp();
#pragma unroll 8
    for (int c = 0; c < kErrorCols; ++c) {
      const double value = tile.weights[lane][c];
      const double off = __dsub_rn(value, decode_int4(tile.codes[lane][c], scale));
      const double weight = a.importance[col + c];
      error = __dadd_rn(error, __dmul_rn(__dmul_rn(weight, off), off));
      energy = __dadd_rn(energy, __dmul_rn(__dmul_rn(weight, value), value));
    }
    __syncwarp();
  }
  if (!exists) return;
  a.errors[own_row] = error;
  a.energies[own_row] = energy;
}

// ---- E4M3 copies ----------------------------------------------------------------------------------

// A weight before it is rounded.
__device__ inline float e4m3_weight(const PackE4m3Args& a, std::int64_t row, std::int64_t col) {
  const float value = a.w.data[row * a.w.cols + col];
  return a.divisors == nullptr ? value : __fdiv_rn(value, a.divisors[col / a.columns_per_divisor]);
}

}  // namespace fut::cuda
