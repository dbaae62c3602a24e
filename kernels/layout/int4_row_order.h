// Which output channel stands in which row of a packed matrix, chosen so that two channels that an
// epilogue combines are rows g and g + 8 of one strip: both then lie in one thread's accumulators.
// Standard C++ only, constexpr throughout. Not how a row's codes lie: layout/int4_tile.h.
//
//   order      strip rows 0..7            strip rows 8..15            of the source rows
//   Natural    as they come               as they come                any matrix
//   GateUp     gate channels 8s .. 8s+7   up channels 8s .. 8s+7      gate_proj, then up_proj
//   RopePairs  dims 8j .. 8j+7 of a head  the same dims + head_dim/2  q_proj, k_proj, then v_proj
//
// In RopePairs only the first rope_rows rows (heads that are rotated) are in pairs; the rest, the
// value heads, stand as they come.
#pragma once

#include <cstdint>

namespace fut::layout {

struct RowOrder {
  // The values are written into packed files.
  enum class Kind : std::uint8_t { Natural = 0, GateUp = 1, RopePairs = 2 };

  // What source_row() says of a row that only fills up a strip: code 0, scale 0.
  static constexpr int kNoRow = -1;
  static constexpr int kHalfStrip = 8;

  Kind kind = Kind::Natural;
  int source_rows = 0;  // of all stacked matrices
  int rope_rows = 0;    // RopePairs: a multiple of head_dim
  int head_dim = 0;     // RopePairs: a multiple of 16

  [[nodiscard]] static constexpr RowOrder natural(int rows) {
    return {.kind = Kind::Natural, .source_rows = rows};
  }
  [[nodiscard]] static constexpr RowOrder gate_up(int intermediate_size) {
    return {.kind = Kind::GateUp, .source_rows = 2 * intermediate_size};
  }
  [[nodiscard]] static constexpr RowOrder qkv(int num_q_heads, int num_kv_heads, int head_dim) {
    return {.kind = Kind::RopePairs,
            .source_rows = (num_q_heads + 2 * num_kv_heads) * head_dim,
            .rope_rows = (num_q_heads + num_kv_heads) * head_dim,
            .head_dim = head_dim};
  }

  // Rows of the packed matrix. GateUp fills up to whole strips itself, because its filling rows
  // stand in the middle of the last strip; otherwise Int4Tile does.
  [[nodiscard]] constexpr int packed_rows() const {
    return kind == Kind::GateUp ? 2 * kHalfStrip * ((channels() + kHalfStrip - 1) / kHalfStrip)
                                : source_rows;
  }

  // The source row in packed row `packed` >= 0, or kNoRow.
  [[nodiscard]] constexpr int source_row(int packed) const {
    if (packed >= packed_rows()) return kNoRow;
    const int strip = packed / (2 * kHalfStrip);
    const int g = packed % kHalfStrip;
    const int second_half = packed / kHalfStrip % 2;
    if (kind == Kind::GateUp) {
      const int channel = kHalfStrip * strip + g;
      return channel < channels() ? second_half * channels() + channel : kNoRow;
    }
    if (kind == Kind::RopePairs && packed < rope_rows) {
      const int head = packed / head_dim;
      const int strip_of_head = packed % head_dim / (2 * kHalfStrip);
      return head * head_dim + second_half * (head_dim / 2) + kHalfStrip * strip_of_head + g;
    }
    return packed;
  }

  // Where 0 <= source < source_rows stands; the inverse of source_row().
  [[nodiscard]] constexpr int packed_row(int source) const {
    if (kind == Kind::GateUp) return in_strips(source % channels(), source / channels());
    if (kind == Kind::RopePairs && source < rope_rows) {
      const int dim = source % head_dim;
      return source - dim + in_strips(dim % (head_dim / 2), dim / (head_dim / 2));
    }
    return source;
  }

  bool operator==(const RowOrder&) const = default;

 private:
  // GateUp: the channels of each of the two matrices, the model's intermediate_size.
  [[nodiscard]] constexpr int channels() const { return source_rows / 2; }

  // The row of member `index` of the first (half 0) or second list, eight of each to a strip.
  [[nodiscard]] static constexpr int in_strips(int index, int half) {
    return index / kHalfStrip * (2 * kHalfStrip) + half * kHalfStrip + index % kHalfStrip;
  }
};

namespace proof {

// Every source row stands somewhere, once, and every other packed row is a filling one.
constexpr bool order_is_bijective(const RowOrder& order) {
  int filled = 0;
  for (int source = 0; source < order.source_rows; ++source) {
    if (order.source_row(order.packed_row(source)) != source) return false;
  }
  for (int packed = 0; packed < order.packed_rows(); ++packed) {
    const int source = order.source_row(packed);
    if (source != RowOrder::kNoRow && order.packed_row(source) != packed) return false;
    filled += source != RowOrder::kNoRow ? 1 : 0;
  }
  return filled == order.source_rows && order.source_row(order.packed_rows()) == RowOrder::kNoRow;
}

static_assert(order_is_bijective(RowOrder::natural(37)), "natural order");
static_assert(order_is_bijective(RowOrder::gate_up(24)), "gate and up channels");
static_assert(order_is_bijective(RowOrder::gate_up(13)), "gate and up channels, filled up");
static_assert(order_is_bijective(RowOrder::qkv(4, 1, 64)), "query, key and value heads of 64");
static_assert(order_is_bijective(RowOrder::qkv(2, 2, 128)), "query, key and value heads of 128");
// Channel 11 of 24: second strip, its rows 3 and 8 + 3.
static_assert(RowOrder::gate_up(24).source_row(16 + 3) == 11 &&
                  RowOrder::gate_up(24).source_row(16 + 8 + 3) == 24 + 11,
              "gate and up of a channel in one thread");
static_assert(RowOrder::gate_up(13).packed_rows() == 32 &&
                  RowOrder::gate_up(16).packed_rows() == 32 &&
                  RowOrder::gate_up(17).packed_rows() == 48 &&
                  RowOrder::qkv(2, 2, 128).packed_rows() == 6 * 128,
              "rows of the packed matrix");
// Dim 21 of key head 0 behind four query heads, and its partner 32 dims on.
static_assert(RowOrder::qkv(4, 1, 64).source_row(4 * 64 + 2 * 16 + 5) == 4 * 64 + 21 &&
                  RowOrder::qkv(4, 1, 64).source_row(4 * 64 + 2 * 16 + 8 + 5) == 4 * 64 + 32 + 21,
              "both members of a RoPE pair in one thread");
static_assert(RowOrder::qkv(4, 1, 64).source_row(5 * 64 + 9) == 5 * 64 + 9, "values as they come");

}  // namespace proof

}  // namespace fut::layout
