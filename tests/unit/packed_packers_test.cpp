// Packed matrices element by element against the layouts, and what rounding may cost.
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <string>

#include "kernels/numeric/e4m3.h"
#include "loader/packers.h"
#include "tests/support/expect_error.h"
#include "tests/unit/packed_case.h"

namespace fut {
namespace {

using layout::Int4Tile;
using layout::RowOrder;
using test::error_message;
using test::expect_mentions;
using test::in_three_threads;

QuantizedMatrix random_quantized(std::int64_t rows, std::int64_t cols, int group_size) {
  std::mt19937_64 random(3);
  QuantizedMatrix q(rows, cols, group_size);
  for (std::int8_t& code : q.codes) code = static_cast<std::int8_t>(int(random() % 16) - 8);
  for (std::uint16_t& scale : q.scales) scale = static_cast<std::uint16_t>(random());
  return q;
}

HostMatrix random_matrix(std::int64_t rows, std::int64_t cols) {
  std::mt19937_64 random(5);
  HostMatrix w("w", rows, cols);
  // All sizes from 1 down to 2^-20, so that codes of every exponent come up.
  for (float& value : w.values) {
    const double unit = static_cast<double>(random() >> 11) * 0x1p-53 - 0.5;
    value = static_cast<float>(std::ldexp(unit, -static_cast<int>(random() % 20)));
  }
  return w;
}

struct Int4Case {
  std::string name;
  RowOrder order;
  int cols;
};

// Full strips and cut ones, one and several heads and groups.
std::vector<Int4Case> int4_cases() {
  return {{"one row", RowOrder::natural(1), 128},
          {"odd rows", RowOrder::natural(37), 384},
          {"whole strips", RowOrder::natural(64), 256},
          {"gate and up", RowOrder::gate_up(32), 128},
          {"gate and up, cut strip", RowOrder::gate_up(13), 256},
          {"heads of 64", RowOrder::qkv(3, 1, 64), 128},
          {"heads of 128", RowOrder::qkv(2, 2, 128), 128}};
}

TEST(PackInt4, PutsEveryCodeAndScaleWhereTheLayoutSays) {
  for (const Int4Case& c : int4_cases()) {
    for (const int group : {64, 128}) {
      const QuantizedMatrix q = random_quantized(c.order.source_rows, c.cols, group);
      const Int4Tile tile{c.order.packed_rows(), c.cols, group};
      const std::vector<std::uint8_t> packed = pack_int4(q, c.order, {});
      ASSERT_EQ(std::ssize(packed), tile.bytes()) << c.name;
      for (int row = 0; row < tile.num_strips() * Int4Tile::kStripRows; ++row) {
        const int source = c.order.source_row(row);
        for (int col = 0; col < c.cols; ++col) {
          const int code = source == RowOrder::kNoRow ? 0 : q.row(source)[col];
          ASSERT_EQ(layout::read_nibble(packed.data(), tile.slot(row, col)), code + 8)
              << c.name << " " << row << " " << col;
          const std::int64_t at = tile.scale_offset(row, col / group);
          const int scale = source == RowOrder::kNoRow ? 0 : q.row_scales(source)[col / group];
          ASSERT_EQ(packed[at] | packed[at + 1] << 8, scale) << c.name << " " << row << " " << col;
        }
      }
    }
  }
}

TEST(PackInt4, IsUndoneByUnpacking) {
  for (const Int4Case& c : int4_cases()) {
    for (const int group : {64, 128}) {
      const QuantizedMatrix q = random_quantized(c.order.source_rows, c.cols, group);
      const QuantizedMatrix back = unpack_int4(pack_int4(q, c.order, {}), c.cols, group, c.order);
      EXPECT_EQ(back.codes, q.codes) << c.name;
      EXPECT_EQ(back.scales, q.scales) << c.name;
      EXPECT_EQ(back.group_size, group);
    }
  }
}

TEST(Packers, GiveTheSameBytesWithAnyNumberOfThreads) {
  const RowOrder order = RowOrder::gate_up(61);
  const QuantizedMatrix q = random_quantized(order.source_rows, 256, 128);
  EXPECT_EQ(pack_int4(q, order, {}), pack_int4(q, order, in_three_threads));
  const HostMatrix w = random_matrix(37, 128);
  EXPECT_EQ(pack_e4m3(w, {}).codes, pack_e4m3(w, in_three_threads).codes);
  EXPECT_EQ(pack_int8(w, {}).codes, pack_int8(w, in_three_threads).codes);
}

TEST(PackInt4, RefusesAMatrixThatIsNotOfTheOrder) {
  const QuantizedMatrix q = random_quantized(16, 128, 128);
  const std::string message =
      error_message(ErrorKind::Runtime, [&] { (void)pack_int4(q, RowOrder::natural(17), {}); });
  expect_mentions(message, {"16", "17"});
}

TEST(PackE4m3, IsWithinHalfAStepOfEveryWeight) {
  const HostMatrix w = random_matrix(33, 257);
  const PackedE4m3 packed = pack_e4m3(w, {});
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const double scale = packed.scales[r];
    for (std::int64_t c = 0; c < w.cols; ++c) {
      const double weight = w.row(r)[c];
      const double found = scale * e4m3_to_f32(packed.codes[r * w.cols + c]);
      // Three fraction bits: half a step is 2^-4 of the number, and 2^-10 below 2^-6; the float32
      // quotient is off by 2^-24 of itself before that, as is the scale behind the largest weight.
      const double bound =
          std::max(std::abs(weight) * 0x1p-4, scale * 0x1p-10) + std::abs(weight) * 0x1p-23;
      ASSERT_LE(std::abs(found - weight), bound) << r << " " << c;
    }
  }
}

TEST(PackE4m3, MakesTheLargestWeightOfARow448) {
  HostMatrix w("w", 2, 3);
  w.values = {0.1F, -3.7F, 2.0F, 1e-3F, 5e-4F, 0.0F};
  const PackedE4m3 packed = pack_e4m3(w, {});
  EXPECT_EQ(packed.scales[0], static_cast<float>(static_cast<double>(3.7F) / 448));
  EXPECT_EQ(packed.codes[1], kE4m3MaxCode | 0x80U);
  EXPECT_EQ(packed.codes[3], kE4m3MaxCode);
}

TEST(PackInt8, IsWithinHalfAStepOfEveryWeight) {
  const HostMatrix w = random_matrix(33, 257);
  const PackedInt8 packed = pack_int8(w, {});
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const double scale = packed.scales[r];
    for (std::int64_t c = 0; c < w.cols; ++c) {
      const double weight = w.row(r)[c];
      const int code = packed.codes[r * w.cols + c];
      ASSERT_LE(std::abs(code), 127);
      // 2^-53 of a quotient of at most 128 for the division in float64.
      ASSERT_LE(std::abs(code * scale - weight), scale * (0.5 + 0x1p-46)) << r << " " << c;
    }
  }
}

TEST(PackInt8, RoundsTiesToEvenAndUsesBothEnds) {
  HostMatrix w("w", 1, 6);
  w.values = {127.0F, -127.0F, 2.5F, 3.5F, -2.5F, 0.4F};
  const PackedInt8 packed = pack_int8(w, {});
  EXPECT_EQ(packed.scales[0], 1.0F);
  EXPECT_EQ(packed.codes, (std::vector<std::int8_t>{127, -127, 2, 4, -2, 0}));
}

TEST(RowScales, OfARowOfZerosAreOne) {
  const HostMatrix w("w", 2, 128);
  EXPECT_EQ(pack_e4m3(w, {}).scales, (std::vector<float>{1, 1}));
  EXPECT_EQ(pack_int8(w, {}).scales, (std::vector<float>{1, 1}));
  EXPECT_EQ(pack_e4m3(w, {}).codes, std::vector<std::uint8_t>(256));
}

TEST(RowScales, OfTinyWeightsStayNormalNumbers) {
  HostMatrix w("w", 1, 1);
  w.values = {std::numeric_limits<float>::denorm_min()};
  EXPECT_EQ(pack_e4m3(w, {}).scales[0], std::numeric_limits<float>::min());
  EXPECT_EQ(pack_int8(w, {}).scales[0], std::numeric_limits<float>::min());
}

TEST(RowScales, OfTheLargestWeightsAreFinite) {
  HostMatrix w("w", 1, 2);
  w.values = {std::numeric_limits<float>::max(), -std::numeric_limits<float>::max()};
  EXPECT_EQ(pack_e4m3(w, {}).codes, (std::vector<std::uint8_t>{0x7E, 0xFE}));
  EXPECT_EQ(pack_int8(w, {}).codes, (std::vector<std::int8_t>{127, -127}));
}

TEST(Packers, NameAWeightThatIsNotFinite) {
  HostMatrix w("layers.3.o_proj", 4, 5);
  w.row(2)[3] = std::numeric_limits<float>::infinity();
  const std::vector<std::string> facts = {"layers.3.o_proj", "row 2", "column 3", "inf"};
  expect_mentions(error_message(ErrorKind::Data, [&] { (void)pack_e4m3(w, {}); }), facts);
  expect_mentions(error_message(ErrorKind::Data, [&] { (void)pack_int8(w, {}); }), facts);
}

}  // namespace
}  // namespace fut
