// From quantised numbers to the bytes that kernels read, and back. Which number stands where is
// layout/int4_tile.h and layout/int4_row_order.h; E4M3 and INT8 matrices lie row after row. Nothing
// here chooses INT4 codes: int4_grid.h and gptq.h do.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/layout/int4_row_order.h"
#include "loader/quantized_matrix.h"

namespace fut {

// The stream of layout::Int4Tile{order.packed_rows(), q.cols, q.group_size}. q.rows ==
// order.source_rows. Rows that fill up a strip have code 0 and scale 0.
[[nodiscard]] std::vector<std::uint8_t> pack_int4(const QuantizedMatrix& q,
                                                  const layout::RowOrder& order,
                                                  const ParallelFor& parallel_for);
// The inverse; `packed` has the size of the tile.
[[nodiscard]] QuantizedMatrix unpack_int4(std::span<const std::uint8_t> packed, int cols,
                                          int group_size, const layout::RowOrder& order);

// W[n, k] = e4m3(codes[n, k]) * scales[n].
struct PackedE4m3 {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};

// scale = amax / 448 of the row, rounded to float32 and at least 2^-126; 1 for a row of zeros. code
// = E4M3 of w / scale, divided in float32, ties to even. Throws Data, naming matrix, row and column,
// for a weight that is not finite.
[[nodiscard]] PackedE4m3 pack_e4m3(const HostMatrix& w, const ParallelFor& parallel_for);

// W[n, k] = codes[n, k] * scales[n].
struct PackedInt8 {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<std::int8_t> codes;  // -127 .. 127
  std::vector<float> scales;
};

// scale = amax / 127 of the row, rounded to float32 and at least 2^-126; 1 for a row of zeros. code
// = w / scale, divided in float64, to the nearest, ties to even. Throws Data as pack_e4m3.
[[nodiscard]] PackedInt8 pack_int8(const HostMatrix& w, const ParallelFor& parallel_for);

}  // namespace fut
