// Packing of whole matrices, a strip or a row at a time; no piece depends on another.
#include "loader/packers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/check.h"
#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/row_scale.h"

namespace fut {
namespace {

using layout::Int4Coord;
using layout::Int4Tile;
using layout::RowOrder;

constexpr float kInt8Max = 127;

Int4Tile tile_of(const RowOrder& order, std::int64_t cols, int group_size) {
  FUT_CHECK(cols <= std::numeric_limits<int>::max() &&
                Int4Tile::packable(order.packed_rows(), static_cast<int>(cols), group_size),
            "a matrix of {} x {} in groups of {} has no packed form", order.packed_rows(), cols,
            group_size);
  return {order.packed_rows(), static_cast<int>(cols), group_size};
}

// One strip's records. Rows that no source row stands in keep code 0 and scale 0.
void pack_strip(const QuantizedMatrix& q, const RowOrder& order, const Int4Tile& tile, int strip,
                std::uint8_t* packed) {
  std::array<int, Int4Tile::kStripRows> source{};
  for (int row = 0; row < Int4Tile::kStripRows; ++row) {
    source[row] = order.source_row(strip * Int4Tile::kStripRows + row);
  }
  for (int group = 0; group < tile.num_groups(); ++group) {
    const std::int64_t record = tile.record_offset(strip, group);
    for (std::int64_t word = record; word < record + tile.code_bytes(); word += 4) {
      // The places of a word's nibbles relative to the first are the same in every lane.
      const Int4Coord first = tile.coord(word, 0);
      std::array<std::uint8_t, 4> bytes{};
      for (int nibble = 0; nibble < 8; ++nibble) {
        const Int4Coord past = layout::int4_fragment_coord({.lane = 0, .nibble = nibble});
        const int row = source[first.row % Int4Tile::kStripRows + past.row];
        const int code = row == RowOrder::kNoRow ? 0 : q.row(row)[first.col + past.col];
        layout::write_nibble(bytes.data(), {.word = 0, .nibble = nibble},
                             code + layout::kInt4CodeBias);
      }
      std::copy(bytes.begin(), bytes.end(), packed + word);
    }
    for (int row = 0; row < Int4Tile::kStripRows; ++row) {
      if (source[row] == RowOrder::kNoRow) continue;
      const std::uint16_t scale = q.row_scales(source[row])[group];
      std::uint8_t* to = packed + tile.scale_offset(strip * Int4Tile::kStripRows + row, group);
      to[0] = static_cast<std::uint8_t>(scale & 0xFFU);
      to[1] = static_cast<std::uint8_t>(scale >> 8);
    }
  }
}

// The largest size in a row. Throws Data for a weight that is not finite.
float row_amax(const HostMatrix& w, std::int64_t row) {
  float amax = 0;
  for (std::int64_t c = 0; c < w.cols; ++c) {
    const float value = w.row(row)[c];
    if (!std::isfinite(value)) {
      throw data_error(
          "{}: the weight at row {}, column {} is {}, only finite numbers can be quantised; the "
          "checkpoint is damaged, download it again",
          w.name, row, c, value);
    }
    amax = std::max(amax, std::abs(value));
  }
  return amax;
}

void check_values(const HostMatrix& w) {
  FUT_CHECK(w.rows >= 0 && w.cols >= 0 && std::ssize(w.values) == w.rows * w.cols,
            "{} holds {} values, not {} x {}", w.name, w.values.size(), w.rows, w.cols);
}

}  // namespace

std::vector<std::uint8_t> pack_int4(const QuantizedMatrix& q, const RowOrder& order,
                                    const ParallelFor& parallel_for) {
  FUT_CHECK(q.rows == order.source_rows, "{} rows, the order is for {}", q.rows, order.source_rows);
  const Int4Tile tile = tile_of(order, q.cols, q.group_size);
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(tile.bytes()));
  run_parallel(parallel_for, tile.num_strips(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t strip = begin; strip < end; ++strip) {
      pack_strip(q, order, tile, static_cast<int>(strip), packed.data());
    }
  });
  return packed;
}

QuantizedMatrix unpack_int4(std::span<const std::uint8_t> packed, int cols, int group_size,
                            const RowOrder& order) {
  const Int4Tile tile = tile_of(order, cols, group_size);
  FUT_CHECK(std::ssize(packed) == tile.bytes(), "{} bytes, the tile has {}", packed.size(),
            tile.bytes());
  QuantizedMatrix q(order.source_rows, cols, group_size);
  for (int source = 0; source < order.source_rows; ++source) {
    const int row = order.packed_row(source);
    for (int col = 0; col < cols; ++col) {
      q.row(source)[col] = static_cast<std::int8_t>(
          layout::read_nibble(packed.data(), tile.slot(row, col)) - layout::kInt4CodeBias);
    }
    for (int group = 0; group < tile.num_groups(); ++group) {
      const std::uint8_t* from = packed.data() + tile.scale_offset(row, group);
      q.row_scales(source)[group] = static_cast<std::uint16_t>(from[0] | from[1] << 8);
    }
  }
  return q;
}

PackedE4m3 pack_e4m3(const HostMatrix& w, const ParallelFor& parallel_for) {
  check_values(w);
  PackedE4m3 out{w.rows, w.cols, std::vector<std::uint8_t>(w.values.size()),
                 std::vector<float>(static_cast<std::size_t>(w.rows))};
  run_parallel(parallel_for, w.rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float scale = row_scale(row_amax(w, r), kE4m3Max);
      out.scales[static_cast<std::size_t>(r)] = scale;
      std::uint8_t* codes = out.codes.data() + r * w.cols;
      for (std::int64_t c = 0; c < w.cols; ++c) codes[c] = f32_to_e4m3(w.row(r)[c] / scale);
    }
  });
  return out;
}

PackedInt8 pack_int8(const HostMatrix& w, const ParallelFor& parallel_for) {
  check_values(w);
  PackedInt8 out{w.rows, w.cols, std::vector<std::int8_t>(w.values.size()),
                 std::vector<float>(static_cast<std::size_t>(w.rows))};
  run_parallel(parallel_for, w.rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float scale = row_scale(row_amax(w, r), kInt8Max);
      out.scales[static_cast<std::size_t>(r)] = scale;
      std::int8_t* codes = out.codes.data() + r * w.cols;
      for (std::int64_t c = 0; c < w.cols; ++c) {
        const double quotient = static_cast<double>(w.row(r)[c]) / static_cast<double>(scale);
        // At 1.5 * 2^52 a double has steps of 1: the addition rounds to nearest, ties to even. The
        // quotient is at most 127 (1 + 2^-24) in size.
        constexpr double kStepsOfOne = 0x1.8p52;
        codes[c] = static_cast<std::int8_t>((quotient + kStepsOfOne) - kStepsOfOne);
      }
    }
  });
  return out;
}

}  // namespace fut
