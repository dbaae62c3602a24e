// Where the INT4 code of a weight lies: the one text that the packer, the CPU reference, the
// kernels and the tests include. Standard C++ only, constexpr throughout. Not how a code is found
// from a weight (numeric/int4_code.h), nor which channel stands in which row
// (layout/int4_row_order.h).
//
// Weights are the A operand of mma.m16n8k16 (and, warp by warp, of wgmma.m64nNk16) on FP16. One
// 32-bit word, little-endian, holds what one lane needs of a tile of 16 rows x 16 columns: eight
// codes, stored as u = code + 8. Lanes are named as the PTX ISA names them: lane = 4g + t.
//
// The table is read by tests/unit/int4_tile_test.cpp and compared with the functions.
//
//   INT4 tile: nibble n is bits 4n .. 4n+3 of the word of lane 4g + t
//
//   | nibble | row | column | A register | half | unpacked as |
//   |--------|-----|--------|------------|------|-------------|
//   | 0      | g   | 2t     | 0          | low  | u * 2^-24   |
//   | 1      | g+8 | 2t     | 1          | low  | u * 2^-20   |
//   | 2      | g   | 2t+8   | 2          | low  | u * 2^-24   |
//   | 3      | g+8 | 2t+8   | 3          | low  | u * 2^-20   |
//   | 4      | g   | 2t+1   | 0          | high | u * 2^-24   |
//   | 5      | g+8 | 2t+1   | 1          | high | u * 2^-20   |
//   | 6      | g   | 2t+9   | 2          | high | u * 2^-24   |
//   | 7      | g+8 | 2t+9   | 3          | high | u * 2^-20   |
//
// Four tiles side by side make a block of 16 rows x 64 columns, 512 bytes: a lane's four words are
// neighbours, so that it fetches them by one 16-byte load. A group is 128 columns (64 as an
// option). Its record is what a strip of 16 rows needs for it, and the records of a strip follow
// each other, strip after strip: everything that a warp reads is one contiguous run.
//
//   INT4 record, group 128: codes 0 .. 1023, scales 1024 .. 1055, 1056 bytes
//   INT4 record, group 64: codes 0 .. 511, scales 512 .. 543, 544 bytes
//
// A scale is BF16, little-endian, that of strip row r at 2r. The last strip is filled up with rows
// of code 0 and scale 0.
#pragma once

#include <array>
#include <cstdint>

namespace fut::layout {

// One nibble of a packed buffer: the byte offset of its 32-bit word, and which nibble of the word.
struct Int4Slot {
  std::int64_t word = 0;
  int nibble = 0;
  bool operator==(const Int4Slot&) const = default;
};

// A nibble of a 16 x 16 tile, as a lane of the warp holds it.
struct Int4FragmentSlot {
  int lane = 0;
  int nibble = 0;
  bool operator==(const Int4FragmentSlot&) const = default;
};

struct Int4Coord {
  int row = 0;
  int col = 0;
  bool operator==(const Int4Coord&) const = default;
};

// The fragment: 0 <= row, col < 16.
[[nodiscard]] constexpr Int4FragmentSlot int4_fragment_slot(int row, int col) {
  return {.lane = 4 * (row % 8) + col % 8 / 2, .nibble = row / 8 + 2 * (col / 8) + 4 * (col % 2)};
}
[[nodiscard]] constexpr Int4Coord int4_fragment_coord(Int4FragmentSlot slot) {
  return {.row = slot.lane / 4 + 8 * (slot.nibble % 2),
          .col = 2 * (slot.lane % 4) + 8 * (slot.nibble / 2 % 2) + slot.nibble / 4};
}

// How a kernel unpacks a word w to half2 registers without a shift for each nibble and without an
// addition. A nibble in bits 0..3 of an FP16 is the subnormal number u * 2^-24, and in bits 4..7 it is
// u * 2^-20; the tensor cores take both exactly.
//   register 0 = w & kInt4LowMask       register 2 = the same of w >> 8
//   register 1 = w & kInt4HighMask      register 3 = the same of w >> 8
// Even nibbles all belong to row g and odd ones to row g + 8, hence each row has one power of two, and a
// sum over a group needs one correction:
//   sum(code * x) = (sum(unpacked * x) - kInt4CodeBias * unit * sum(x)) / unit
inline constexpr std::uint32_t kInt4LowMask = 0x000F000FU;
inline constexpr std::uint32_t kInt4HighMask = 0x00F000F0U;
inline constexpr float kInt4LowUnit = 0x1p-24F;   // what code 1 is unpacked as, rows g
inline constexpr float kInt4HighUnit = 0x1p-20F;  // rows g + 8
inline constexpr float kInt4UnitRatio = kInt4HighUnit / kInt4LowUnit;

// What is added to a weight's code to store it: -8 .. 7 becomes 0 .. 15.
inline constexpr int kInt4CodeBias = 8;

// Geometry of one packed matrix W[rows = outputs, cols = inputs]; owns nothing. The buffer has to
// be 16-byte aligned.
struct Int4Tile {
  int rows = 0;
  int cols = 0;
  int group = 128;

  // Written into packed files; whatever changes a formula of this header raises it.
  static constexpr std::uint32_t kVersion = 1;
  static constexpr int kStripRows = 16;
  static constexpr int kTileCols = 16;
  static constexpr int kBlockCols = 64;
  static constexpr int kBlockBytes = kStripRows * kBlockCols / 2;
  static constexpr int kScaleBytes = 2 * kStripRows;
  static constexpr int kColsMultiple = 128;  // of both group sizes: one rule, one message

  // Whether such a matrix can be packed at all. Any number of rows can.
  [[nodiscard]] static constexpr bool packable(int rows, int cols, int group) {
    return rows > 0 && cols > 0 && cols % kColsMultiple == 0 && (group == 128 || group == 64);
  }

  [[nodiscard]] constexpr int num_strips() const { return (rows + kStripRows - 1) / kStripRows; }
  [[nodiscard]] constexpr int num_groups() const { return cols / group; }
  [[nodiscard]] constexpr int code_bytes() const { return kStripRows * group / 2; }
  [[nodiscard]] constexpr int record_bytes() const { return code_bytes() + kScaleBytes; }

  // The only size formula.
  [[nodiscard]] constexpr std::int64_t bytes() const { return record_offset(num_strips(), 0); }
  [[nodiscard]] static constexpr std::int64_t bytes(int rows, int cols, int group) {
    return Int4Tile{rows, cols, group}.bytes();
  }

  [[nodiscard]] constexpr std::int64_t record_offset(int strip, int group_index) const {
    return (static_cast<std::int64_t>(strip) * num_groups() + group_index) * record_bytes();
  }

  // Byte offset of the BF16 scale of one row and group.
  [[nodiscard]] constexpr std::int64_t scale_offset(int row, int group_index) const {
    return record_offset(row / kStripRows, group_index) + code_bytes() + 2 * (row % kStripRows);
  }

  // 0 <= row < 16 * num_strips(), 0 <= col < cols.
  [[nodiscard]] constexpr Int4Slot slot(int row, int col) const {
    const Int4FragmentSlot in_tile = int4_fragment_slot(row % kStripRows, col % kTileCols);
    const int block = col % group / kBlockCols;
    const int tile = col % kBlockCols / kTileCols;
    return {.word = record_offset(row / kStripRows, col / group) + block * kBlockBytes +
                    16 * in_tile.lane + 4 * tile,
            .nibble = in_tile.nibble};
  }

  // The inverse of slot(). `word` must be a word of codes, not of scales; the row can be one of
  // those that fill up the last strip.
  [[nodiscard]] constexpr Int4Coord coord(std::int64_t word, int nibble) const {
    const std::int64_t record = word / record_bytes();
    const int in_record = static_cast<int>(word % record_bytes());
    const int in_block = in_record % kBlockBytes;
    const Int4Coord in_tile = int4_fragment_coord({.lane = in_block / 16, .nibble = nibble});
    return {.row = static_cast<int>(record / num_groups()) * kStripRows + in_tile.row,
            .col = static_cast<int>(record % num_groups()) * group +
                   in_record / kBlockBytes * kBlockCols + in_block % 16 / 4 * kTileCols +
                   in_tile.col};
  }
};

// Reads and writes one stored value, 0 <= u <= 15, whatever the machine's byte order.
[[nodiscard]] constexpr int read_nibble(const std::uint8_t* buffer, Int4Slot slot) {
  return buffer[slot.word + slot.nibble / 2] >> (4 * (slot.nibble % 2)) & 0xF;
}
constexpr void write_nibble(std::uint8_t* buffer, Int4Slot slot, int u) {
  std::uint8_t& byte = buffer[slot.word + slot.nibble / 2];
  const int shift = 4 * (slot.nibble % 2);
  byte = static_cast<std::uint8_t>((byte & ~(0xF << shift)) | u << shift);
}

// ---- proof, at every compilation ---------------------------------------------------------------

namespace proof {

// The picture above once more, as numbers: a formula and its inverse can be wrong together.
struct NibblePlace {
  int row_past_g, col_past_2t;
};
inline constexpr std::array<NibblePlace, 8> kNibblePlaces = {
    {{0, 0}, {8, 0}, {0, 8}, {8, 8}, {0, 1}, {8, 1}, {0, 9}, {8, 9}}};

constexpr bool fragment_is_as_drawn() {
  for (int lane = 0; lane < 32; ++lane) {
    for (int nibble = 0; nibble < 8; ++nibble) {
      const Int4Coord drawn = {.row = lane / 4 + kNibblePlaces[nibble].row_past_g,
                               .col = 2 * (lane % 4) + kNibblePlaces[nibble].col_past_2t};
      if (int4_fragment_coord({lane, nibble}) != drawn) return false;
      if (int4_fragment_slot(drawn.row, drawn.col) != Int4FragmentSlot{lane, nibble}) return false;
    }
  }
  return true;
}

// Codes and scales of one strip of 128 columns meet every half byte of its records exactly once,
// and coord() leads back.
constexpr bool records_are_tiled(int group) {
  const Int4Tile tile{Int4Tile::kStripRows, 128, group};
  std::array<int, 1056 + 32> taken{};  // bit 0: low half of the byte, bit 1: high half
  for (int row = 0; row < tile.rows; ++row) {
    for (int col = 0; col < tile.cols; ++col) {
      const Int4Slot slot = tile.slot(row, col);
      if (tile.coord(slot.word, slot.nibble) != Int4Coord{row, col}) return false;
      taken[slot.word + slot.nibble / 2] += 1 << slot.nibble % 2;
    }
    for (int index = 0; index < tile.num_groups(); ++index) {
      taken[tile.scale_offset(row, index)] += 3;
      taken[tile.scale_offset(row, index) + 1] += 3;
    }
  }
  for (std::int64_t byte = 0; byte < tile.bytes(); ++byte) {
    if (taken[byte] != 3) return false;
  }
  return true;
}

constexpr bool nibbles_are_apart() {
  std::array<std::uint8_t, 8> buffer{};
  for (int nibble = 0; nibble < 8; ++nibble) write_nibble(buffer.data(), {4, nibble}, 15);
  for (int nibble = 0; nibble < 8; ++nibble) write_nibble(buffer.data(), {4, nibble}, nibble + 5);
  for (int nibble = 0; nibble < 8; ++nibble) {
    if (read_nibble(buffer.data(), {4, nibble}) != nibble + 5) return false;
  }
  return buffer[3] == 0 && buffer[4] == 0x65 && buffer[7] == 0xCB;
}

inline constexpr Int4Tile kWide{40, 384, 128};
inline constexpr Int4Tile kFine{40, 384, 64};

static_assert(fragment_is_as_drawn(), "the fragment differs from the picture");
static_assert(records_are_tiled(128), "a record of group 128 has a hole or an overlap");
static_assert(records_are_tiled(64), "a record of group 64 has a hole or an overlap");
static_assert(kWide.record_bytes() == 1056 && kFine.record_bytes() == 544, "record size");
static_assert(kWide.bytes() == 3 * 3 * 1056 && kFine.bytes() == 3 * 6 * 544, "matrix size");
// Record (2, 1) of three a strip; second block, third tile of it; lane 4*3 + 1, nibble 7.
static_assert(kWide.slot(32 + 8 + 3, 128 + 64 + 32 + 11) ==
                  Int4Slot{7 * 1056 + 512 + 13 * 16 + 2 * 4, 7},
              "a known place");
static_assert(kWide.coord(7 * 1056 + 512 + 13 * 16 + 2 * 4, 7) ==
                  Int4Coord{32 + 8 + 3, 128 + 64 + 32 + 11},
              "a known place, backwards");
static_assert(kWide.scale_offset(32 + 5, 1) == 7 * 1056 + 1024 + 2 * 5, "a known scale");
static_assert(kFine.scale_offset(16 + 5, 4) == 10 * 544 + 512 + 2 * 5, "a known scale");
static_assert(Int4Tile{16, 128}.num_strips() == 1 && Int4Tile{17, 128}.num_strips() == 2,
              "a started strip counts");
static_assert(Int4Tile::packable(1, 128, 128) && Int4Tile::packable(1, 384, 64) &&
                  !Int4Tile::packable(1, 192, 64) && !Int4Tile::packable(1, 128, 32) &&
                  !Int4Tile::packable(0, 128, 128) && !Int4Tile::packable(1, 0, 128),
              "what can be packed");
static_assert(nibbles_are_apart(), "a nibble written is not the one read, or takes others along");
static_assert(kInt4LowMask == (0xFU << 4 * 0 | 0xFU << 4 * 4) &&
                  kInt4HighMask == (0xFU << 4 * 1 | 0xFU << 4 * 5),
              "a register takes nibbles n and n + 4: two columns side by side");
static_assert(kInt4HighUnit == 16 * kInt4LowUnit, "four bits up");
static_assert(2 * kInt4CodeBias == 16, "codes of both signs fill a nibble");

}  // namespace proof

}  // namespace fut::layout
