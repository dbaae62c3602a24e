// The INT4 page of the KV cache: where a key's or value's code and its parameters lie, and which
// positions a query reads raw instead. Standard C++ only, constexpr throughout; made for the decode
// kernel, written by prefill and by the reference. Not how a code is found from a number.
//
// A page holds 64 tokens of one layer, head by head; what a head needs of it is one run of bytes:
//
//   INT4 page, head_dim 128, kv group 128: keys 0 .. 4095, values 4096 .. 8191,
//     key parameters 8192 .. 8447, value parameters 8448 .. 8703, 8704 bytes a head
//   INT4 page, head_dim 64, kv group 32: keys 0 .. 2047, values 2048 .. 4095,
//     key parameters 4096 .. 4607, value parameters 4608 .. 5119, 5120 bytes a head
//
// Codes are u = 0 .. 15 and a number is minimum + scale * u. Keys and values come in four blocks of
// 16 tokens, each packed once, when its tokens are complete. A block is made of the 16 x 16 tiles
// of layout/int4_tile.h, both being the A operand of their product:
//
//   keys     S^T = K Q^T     tile row = token, tile column = dim
//   values   O^T = V^T P^T   tile row = dim, tile column = token
//
// and of either the four tiles of 64 dims make 512 bytes, a lane's four words being neighbours, so
// that it fetches them by one 16-byte load. Parameters are FP16, the scale at +0 and the minimum at
// +2, [token][group of dims]: a lane fetches all that belong to one token by one load.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "kernels/layout/int4_tile.h"
#include "kernels/layout/kv_page.h"

namespace fut::layout {

enum class KvPart { Key = 0, Value = 1 };

struct KvInt4Coord {
  KvPart part = KvPart::Key;
  int head = 0;
  int token = 0;
  int dim = 0;
  bool operator==(const KvInt4Coord&) const = default;
};

// Geometry of a page; owns nothing. Byte offsets count from the page's start, which has to be
// 16-byte aligned; every block of codes and every array of parameters is then aligned, too.
struct KvPageInt4 {
  int num_kv_heads = 0;
  int head_dim = 0;
  int kv_group = 0;  // dims that share a scale and a minimum: head_dim by default

  static constexpr int kBlockTokens = 16;
  static constexpr int kParamBytes = 4;

  [[nodiscard]] static constexpr bool supported(int head_dim, int kv_group) {
    return (head_dim == 64 || head_dim == 128) &&
           (kv_group == head_dim || kv_group == 32 || kv_group == 64);
  }

  [[nodiscard]] constexpr int num_groups() const { return head_dim / kv_group; }
  [[nodiscard]] constexpr int block_bytes() const { return kBlockTokens * head_dim / 2; }
  [[nodiscard]] constexpr int code_bytes() const { return kPageTokens * head_dim / 2; }
  [[nodiscard]] constexpr int param_bytes() const {
    return kPageTokens * num_groups() * kParamBytes;
  }
  [[nodiscard]] constexpr int head_bytes() const { return 2 * (code_bytes() + param_bytes()); }
  [[nodiscard]] constexpr std::int64_t bytes() const { return head_offset(num_kv_heads); }

  [[nodiscard]] constexpr std::int64_t head_offset(int head) const {
    return static_cast<std::int64_t>(head) * head_bytes();
  }

  // The codes of tokens 16 * block .. 16 * block + 15.
  [[nodiscard]] constexpr std::int64_t block_offset(KvPart part, int head, int block) const {
    return head_offset(head) + static_cast<int>(part) * code_bytes() + block * block_bytes();
  }

  // The scale of one token (0 .. 63, within the page) and group of dims; its minimum is 2 bytes on.
  [[nodiscard]] constexpr std::int64_t params_offset(KvPart part, int head, int token,
                                                     int group) const {
    return head_offset(head) + 2 * code_bytes() + static_cast<int>(part) * param_bytes() +
           (token * num_groups() + group) * kParamBytes;
  }

  [[nodiscard]] constexpr Int4Slot slot(KvPart part, int head, int token, int dim) const {
    const int row = part == KvPart::Key ? token % 16 : dim % 16;
    const int col = part == KvPart::Key ? dim % 16 : token % 16;
    const Int4FragmentSlot in_tile = int4_fragment_slot(row, col);
    return {.word = block_offset(part, head, token / kBlockTokens) +
                    dim / Int4Tile::kBlockCols * Int4Tile::kBlockBytes + 16 * in_tile.lane +
                    4 * (dim % Int4Tile::kBlockCols / Int4Tile::kTileCols),
            .nibble = in_tile.nibble};
  }

  // The inverse of slot(); `word` must be a word of codes, not of parameters.
  [[nodiscard]] constexpr KvInt4Coord coord(std::int64_t word, int nibble) const {
    const int in_head = static_cast<int>(word % head_bytes());
    const KvPart part = in_head < code_bytes() ? KvPart::Key : KvPart::Value;
    const int in_part = in_head % code_bytes();
    const int in_64_dims = in_part % Int4Tile::kBlockBytes;
    const Int4Coord in_tile = int4_fragment_coord({.lane = in_64_dims / 16, .nibble = nibble});
    const int first_token = in_part / block_bytes() * kBlockTokens;
    const int first_dim = in_part % block_bytes() / Int4Tile::kBlockBytes * Int4Tile::kBlockCols +
                          in_64_dims % 16 / 4 * Int4Tile::kTileCols;
    return {.part = part,
            .head = static_cast<int>(word / head_bytes()),
            .token = first_token + (part == KvPart::Key ? in_tile.row : in_tile.col),
            .dim = first_dim + (part == KvPart::Key ? in_tile.col : in_tile.row)};
  }
};

// ---- what a query reads raw --------------------------------------------------------------------

// The first tokens of a sequence stay raw for good (attention sinks: large keys that every query
// looks at), and so does the block of 16 that the query's own token stands in: it is packed when it
// is complete. Positions alone decide, so a result never depends on the batch.
inline constexpr std::int64_t kSinkTokens = 16;
inline constexpr std::int64_t kTailTokens = KvPageInt4::kBlockTokens;

// The rule of decode, for key_position <= query_position.
[[nodiscard]] constexpr bool is_raw(std::int64_t key_position, std::int64_t query_position) {
  return key_position < kSinkTokens || key_position >= query_position / kTailTokens * kTailTokens;
}

// The raw rows of one sequence and layer, BF16 after RoPE and rotation:
// [kv head][key | value][sink | tail][16][head_dim]. Offsets count elements.
struct KvRawStore {
  int num_kv_heads = 0;
  int head_dim = 0;

  [[nodiscard]] constexpr std::int64_t elements() const { return head_offset(num_kv_heads); }
  [[nodiscard]] constexpr std::int64_t head_offset(int head) const {
    return static_cast<std::int64_t>(head) * 2 * (kSinkTokens + kTailTokens) * head_dim;
  }

  // The row of a position that is raw for the query at hand: its place among the sinks for good,
  // else its place in the tail until the next block begins.
  [[nodiscard]] constexpr std::int64_t offset(KvPart part, int head, std::int64_t position) const {
    const std::int64_t row =
        position < kSinkTokens ? position : kSinkTokens + position % kTailTokens;
    return head_offset(head) +
           (static_cast<int>(part) * (kSinkTokens + kTailTokens) + row) * head_dim;
  }
};

// ---- proof, at every compilation ---------------------------------------------------------------

namespace proof {

// The codes of one block and part fill the block, each half byte once, and coord() leads back.
constexpr bool block_is_tiled(KvPageInt4 page, KvPart part, int head, int block) {
  std::array<int, 16 * 128 / 2> taken{};  // bit 0: low half of the byte, bit 1: high half
  const int first = block * KvPageInt4::kBlockTokens;
  for (int token = first; token < first + KvPageInt4::kBlockTokens; ++token) {
    for (int dim = 0; dim < page.head_dim; ++dim) {
      const Int4Slot slot = page.slot(part, head, token, dim);
      if (page.coord(slot.word, slot.nibble) != KvInt4Coord{part, head, token, dim}) return false;
      taken[slot.word - page.block_offset(part, head, block) + slot.nibble / 2] +=
          1 << slot.nibble % 2;
    }
  }
  for (int byte = 0; byte < page.block_bytes(); ++byte) {
    if (taken[byte] != 3) return false;
  }
  return true;
}

// Blocks and parameters follow each other without hole or overlap and end where the next head
// starts.
constexpr bool head_is_tiled(KvPageInt4 page, int head) {
  std::int64_t next = page.head_offset(head);
  for (const KvPart part : {KvPart::Key, KvPart::Value}) {
    for (int block = 0; block < 4; ++block, next += 8 * page.head_dim) {
      if (page.block_offset(part, head, block) != next || next % 16 != 0) return false;
    }
  }
  for (const KvPart part : {KvPart::Key, KvPart::Value}) {
    if (next % 16 != 0) return false;
    for (int token = 0; token < kPageTokens; ++token) {
      for (int group = 0; group < page.head_dim / page.kv_group; ++group, next += 4) {
        if (page.params_offset(part, head, token, group) != next) return false;
      }
    }
  }
  return next == page.head_offset(head + 1) && next % 16 == 0;
}

// How many shapes are supported, of all up to 256.
constexpr int num_supported() {
  int found = 0;
  for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
    for (int kv_group = 16; kv_group <= 256; kv_group += 16) {
      found += KvPageInt4::supported(head_dim, kv_group) ? 1 : 0;
    }
  }
  return found;
}

inline constexpr KvPageInt4 kPage128{2, 128, 128};
inline constexpr KvPageInt4 kPage64{2, 64, 32};

static_assert(block_is_tiled(kPage128, KvPart::Key, 1, 0), "keys of 128 dims");
static_assert(block_is_tiled(kPage128, KvPart::Value, 0, 3), "values of 128 dims");
static_assert(block_is_tiled(kPage64, KvPart::Key, 0, 3), "keys of 64 dims");
static_assert(block_is_tiled(kPage64, KvPart::Value, 1, 0), "values of 64 dims");
static_assert(head_is_tiled({2, 128, 128}, 1) && head_is_tiled({2, 128, 64}, 1) &&
                  head_is_tiled({2, 128, 32}, 1) && head_is_tiled({2, 64, 64}, 1) &&
                  head_is_tiled({2, 64, 32}, 1),
              "a head's block has a hole or an overlap");
static_assert(num_supported() == 5 && KvPageInt4::supported(64, 32) &&
                  KvPageInt4::supported(64, 64) && KvPageInt4::supported(128, 32) &&
                  KvPageInt4::supported(128, 64) && KvPageInt4::supported(128, 128),
              "supported shapes");
static_assert(kPage128.head_bytes() == 8704 && kPage64.head_bytes() == 5120, "bytes of a head");
static_assert(kPage128.bytes() == 2 * 8704, "bytes of a page");
// Token 16*2 + 8 + 3, dim 64 + 32 + 11. As a key: row g+8 = 8+3, column 2t+9 = 11, so lane 13,
// nibble 7. As a value: row 11 = g+8 with g = 3, column 8 + 3 = 2t+9 with t = 1: the same place.
static_assert(kPage128.slot(KvPart::Key, 1, 43, 107) ==
                  Int4Slot{8704 + 2 * 1024 + 512 + 13 * 16 + 2 * 4, 7},
              "a known key");
static_assert(kPage128.slot(KvPart::Value, 1, 43, 107) ==
                  Int4Slot{8704 + 4096 + 2 * 1024 + 512 + 13 * 16 + 2 * 4, 7},
              "a known value");
// Token 2, dim 9: a key's row g = 2, column 2t+9 with t = 0; a value's row g+8 = 9, column 2t = 2.
static_assert(kPage64.slot(KvPart::Key, 0, 2, 9) == Int4Slot{8 * 16, 6}, "a known key");
static_assert(kPage64.slot(KvPart::Value, 0, 2, 9) == Int4Slot{2048 + 5 * 16, 1}, "a known value");
static_assert(is_raw(0, 1000) && is_raw(15, 1000) && !is_raw(16, 1000) && !is_raw(991, 1000) &&
                  is_raw(992, 1000) && is_raw(1000, 1000) && is_raw(992, 1007) &&
                  !is_raw(992, 1008) && is_raw(1008, 1008) && is_raw(3, 3) && is_raw(16, 31),
              "which keys are raw");
static_assert(KvRawStore{3, 64}.elements() == 3 * 2 * 2 * 16 * 64, "rows kept raw");
static_assert(KvRawStore{3, 64}.offset(KvPart::Value, 2, 37) ==
                  (((2 * 2 + 1) * 2 + 1) * 16 + 5) * 64,
              "a known row of the tail");
static_assert(KvRawStore{3, 64}.offset(KvPart::Key, 1, 7) == (((1 * 2 + 0) * 2 + 0) * 16 + 7) * 64,
              "a known row of the sinks");

}  // namespace proof

}  // namespace fut::layout
