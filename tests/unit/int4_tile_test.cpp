// Where INT4 weights lie, at run time and on whole matrices; that the pictures in the documents are
// those of the functions; which channel stands in which row. What the real instruction makes of a
// word is asked by tests/kernel/fragment_probe_test.cu.
#include "kernels/layout/int4_tile.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <numeric>
#include <regex>
#include <string>
#include <vector>

#include "kernels/layout/int4_row_order.h"
#include "kernels/numeric/formats.h"
#include "tests/support/test_data.h"

namespace fut {
namespace {

using layout::Int4Coord;
using layout::Int4FragmentSlot;
using layout::Int4Slot;
using layout::Int4Tile;
using layout::RowOrder;

// Every document that shows the pictures; each is held to them.
constexpr const char* kDocuments[] = {"kernels/layout/int4_tile.h", "kernels/README.md"};

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::smatch> matches(const std::string& text, const std::regex& pattern) {
  return {std::sregex_iterator(text.begin(), text.end(), pattern), std::sregex_iterator()};
}

// "g", "g+8", "2t+9": what is added to g or 2t.
int offset_in(const std::string& place) {
  const std::size_t plus = place.find('+');
  return plus == std::string::npos ? 0 : std::stoi(place.substr(plus + 1));
}

// ---- the pictures ------------------------------------------------------------------------------

TEST(Int4Picture, EachNibbleOfAWordLiesWhereTheTableSays) {
  const std::regex line(
      R"(\| (\d) +\| (g(?:\+\d)?) +\| (2t(?:\+\d)?) +\| (\d) +\| (low|high) +\| u \* 2\^(-\d+) +\|)");
  for (const char* document : kDocuments) {
    const std::string text = text_of(test::source_path(document));
    const std::vector<std::smatch> table = matches(text, line);
    ASSERT_EQ(table.size(), 8U) << "lines of the nibble table in " << document;
    for (int nibble = 0; nibble < 8; ++nibble) {
      const std::smatch& row = table[nibble];
      ASSERT_EQ(std::stoi(row[1]), nibble) << document;
      for (int lane = 0; lane < 32; ++lane) {
        const Int4Coord drawn{lane / 4 + offset_in(row[2]), 2 * (lane % 4) + offset_in(row[3])};
        EXPECT_EQ(layout::int4_fragment_coord({lane, nibble}), drawn) << row[0];
        EXPECT_EQ(layout::int4_fragment_slot(drawn.row, drawn.col),
                  (Int4FragmentSlot{lane, nibble}))
            << row[0];
      }
    }
  }
}

// The half of register `index` of a word's four, as a kernel unpacks it.
float unpacked(std::uint32_t word, int index, bool high_half) {
  const std::uint32_t shifted = index < 2 ? word : word >> 8;
  const std::uint32_t pair =
      shifted & (index % 2 == 0 ? layout::kInt4LowMask : layout::kInt4HighMask);
  return f16_to_f32(static_cast<std::uint16_t>(high_half ? pair >> 16 : pair));
}

TEST(Int4Picture, EachNibbleUnpacksIntoTheRegisterTheTableSays) {
  const std::regex line(
      R"(\| (\d) +\| g\S* +\| 2t\S* +\| (\d) +\| (low|high) +\| u \* 2\^(-\d+) +\|)");
  for (const char* document : kDocuments) {
    const std::string text = text_of(test::source_path(document));
    const std::vector<std::smatch> table = matches(text, line);
    ASSERT_EQ(table.size(), 8U) << document;
    for (const std::smatch& row : table) {
      for (std::uint32_t u = 0; u < 16; ++u) {
        // All other nibbles hold the complement, so that a bit of theirs would show.
        const int shift = 4 * std::stoi(row[1]);
        const std::uint32_t others = 0x11111111U * (15 - u);
        const std::uint32_t word = (others & ~(0xFU << shift)) | u << shift;
        EXPECT_EQ(unpacked(word, std::stoi(row[2]), row[3] == "high"),
                  std::ldexp(static_cast<float>(u), std::stoi(row[4])))
            << row[0] << " u " << u;
      }
    }
  }
}

TEST(Int4Picture, TheUnitOfARowIsItsConstant) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int nibble = 0; nibble < 8; ++nibble) {
      const bool first_rows = layout::int4_fragment_coord({lane, nibble}).row < 8;
      EXPECT_EQ(first_rows, nibble % 2 == 0);
    }
  }
  EXPECT_EQ(unpacked(0x01, 0, false), layout::kInt4LowUnit);
  EXPECT_EQ(unpacked(0x10, 1, false), layout::kInt4HighUnit);
}

// The A operand of m16n8k16 as the PTX ISA describes it ("Matrix Fragments for mma.m16n8k16 with
// floating point type"): element i of lane 4g + t is row g (+ 8 for i of 2, 3, 6, 7) and column
// 2t + i mod 2 (+ 8 from i = 4 on); register r holds elements 2r and 2r + 1.
TEST(Int4Picture, RegistersAreTheOperandOfTheInstruction) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int element = 0; element < 8; ++element) {
      const int row = lane / 4 + (element % 4 >= 2 ? 8 : 0);
      const int col = 2 * (lane % 4) + element % 2 + (element >= 4 ? 8 : 0);
      const Int4FragmentSlot slot = layout::int4_fragment_slot(row, col);
      EXPECT_EQ(slot.lane, lane);
      const std::uint32_t word = 5U << (4 * slot.nibble);
      const float unit = row < 8 ? layout::kInt4LowUnit : layout::kInt4HighUnit;
      EXPECT_EQ(unpacked(word, element / 2, element % 2 == 1), 5 * unit);
    }
  }
}

TEST(Int4Picture, RecordsHaveTheSizesDrawn) {
  const std::regex line(
      R"(INT4 record, group (\d+): codes 0 \.\. (\d+), scales (\d+) \.\. (\d+), (\d+) bytes)");
  for (const char* document : kDocuments) {
    const std::string text = text_of(test::source_path(document));
    const std::vector<std::smatch> lines = matches(text, line);
    ASSERT_EQ(lines.size(), 2U) << document;
    for (const std::smatch& drawn : lines) {
      const Int4Tile tile{16, 128, std::stoi(drawn[1])};
      EXPECT_EQ(tile.code_bytes(), std::stoi(drawn[2]) + 1) << drawn[0];
      EXPECT_EQ(tile.scale_offset(0, 0), std::stoi(drawn[3])) << drawn[0];
      EXPECT_EQ(tile.scale_offset(15, 0) + 1, std::stoi(drawn[4])) << drawn[0];
      EXPECT_EQ(tile.record_bytes(), std::stoi(drawn[5])) << drawn[0];
    }
  }
}

// ---- whole matrices ----------------------------------------------------------------------------

struct Shape {
  int rows, cols, group;
};

class Int4Matrix : public testing::TestWithParam<Shape> {
 protected:
  Int4Tile tile_{GetParam().rows, GetParam().cols, GetParam().group};
};

TEST_P(Int4Matrix, CodesAndScalesFillTheBufferOnceAndLeadBack) {
  std::vector<int> taken(tile_.bytes(), 0);  // 1: low half of the byte, 2: high half
  for (int row = 0; row < 16 * tile_.num_strips(); ++row) {
    for (int col = 0; col < tile_.cols; ++col) {
      const Int4Slot slot = tile_.slot(row, col);
      ASSERT_EQ(slot.word % 4, 0);
      ASSERT_EQ(tile_.coord(slot.word, slot.nibble), (Int4Coord{row, col}));
      taken.at(slot.word + slot.nibble / 2) += slot.nibble % 2 == 0 ? 1 : 2;
    }
    for (int group = 0; group < tile_.num_groups(); ++group) {
      taken.at(tile_.scale_offset(row, group)) += 3;
      taken.at(tile_.scale_offset(row, group) + 1) += 3;
    }
  }
  EXPECT_EQ(std::count(taken.begin(), taken.end(), 3), tile_.bytes());
}

TEST_P(Int4Matrix, AStripIsOneRunOfItsGroupsRecords) {
  EXPECT_EQ(tile_.record_bytes() % 16, 0) << "records have to keep 16-byte loads aligned";
  for (int row = 0; row < tile_.rows; ++row) {
    for (int col = 0; col < tile_.cols; ++col) {
      const std::int64_t record =
          std::int64_t{row / 16} * (tile_.cols / tile_.group) + col / tile_.group;
      ASSERT_EQ(tile_.slot(row, col).word / tile_.record_bytes(), record);
    }
  }
}

TEST_P(Int4Matrix, ALanesLoadOf16BytesHoldsFourTilesSideBySide) {
  for (int col = 0; col < tile_.cols; col += 64) {
    const std::int64_t load = tile_.slot(0, col).word;
    EXPECT_EQ(load % 16, 0);
    for (int tile = 0; tile < 4; ++tile) {
      EXPECT_EQ(tile_.slot(0, col + 16 * tile).word, load + 4 * tile);
    }
    EXPECT_EQ(tile_.slot(1, col).word, load + 4 * 16) << "lane 4 is row 1";
    EXPECT_EQ(tile_.slot(0, col + 2).word, load + 16) << "lane 1 is columns 2 and 3";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Int4Matrix,
                         testing::Values(Shape{1, 128, 128}, Shape{16, 128, 64},
                                         Shape{17, 256, 128}, Shape{64, 384, 128},
                                         Shape{100, 384, 64}, Shape{48, 1024, 128}),
                         [](const auto& instance) {
                           return std::to_string(instance.param.rows) + "x" +
                                  std::to_string(instance.param.cols) + "g" +
                                  std::to_string(instance.param.group);
                         });

TEST(Int4Size, RowsCountInWholeStrips) {
  EXPECT_EQ(Int4Tile::bytes(16, 4096, 128), 32 * 1056);
  EXPECT_EQ(Int4Tile::bytes(1, 4096, 128), 32 * 1056);
  EXPECT_EQ(Int4Tile::bytes(17, 4096, 128), 2 * 32 * 1056);
  EXPECT_EQ(Int4Tile::bytes(16, 4096, 64), 64 * 544);
}

// 4 bits a weight and 16 a group, for sizes beyond 32 bits as well.
TEST(Int4Size, AWeightTakesItsCodeAndItsShareOfAScale) {
  const std::int64_t weights = std::int64_t{128256} * 65536;
  EXPECT_EQ(Int4Tile::bytes(128256, 65536, 128), weights / 2 + weights / 128 * 2);
  EXPECT_EQ(Int4Tile::bytes(128256, 65536, 64), weights / 2 + weights / 64 * 2);
  const Int4Tile tile{128256, 65536, 128};
  const Int4Slot last = tile.slot(128255, 65535);
  EXPECT_EQ(last.word, tile.bytes() - 32 - 4);
  EXPECT_EQ(tile.coord(last.word, last.nibble), (Int4Coord{128255, 65535}));
}

TEST(Int4Size, WidthsThatFillNoGroupAreRefused) {
  EXPECT_TRUE(Int4Tile::packable(1, 128, 128));
  EXPECT_TRUE(Int4Tile::packable(7, 384, 64));
  EXPECT_FALSE(Int4Tile::packable(16, 64, 64)) << "one rule for both group sizes";
  EXPECT_FALSE(Int4Tile::packable(16, 200, 128));
  EXPECT_FALSE(Int4Tile::packable(16, 0, 128));
  EXPECT_FALSE(Int4Tile::packable(0, 128, 128));
  EXPECT_FALSE(Int4Tile::packable(16, 128, 32));
}

TEST(Int4Nibble, WritingOneLeavesTheOthersAlone) {
  std::vector<std::uint8_t> buffer(12, 0xA5);
  for (int nibble = 0; nibble < 8; ++nibble)
    layout::write_nibble(buffer.data(), {4, nibble}, nibble + 3);
  // Little-endian: nibble n is bits 4n .. 4n+3 of the word.
  EXPECT_EQ(std::vector<std::uint8_t>(buffer.begin() + 4, buffer.begin() + 8),
            (std::vector<std::uint8_t>{0x43, 0x65, 0x87, 0xA9}));
  for (int nibble = 0; nibble < 8; ++nibble) {
    EXPECT_EQ(layout::read_nibble(buffer.data(), {4, nibble}), nibble + 3);
  }
  EXPECT_EQ(std::count(buffer.begin(), buffer.end(), 0xA5), 8);
}

// ---- row order ---------------------------------------------------------------------------------

// Both ways, for every row; the rest of the packed rows fill up strips.
void expect_bijection(const RowOrder& order) {
  std::vector<int> sources;
  for (int packed = 0; packed < order.packed_rows(); ++packed) {
    const int source = order.source_row(packed);
    if (source == RowOrder::kNoRow) continue;
    sources.push_back(source);
    ASSERT_EQ(order.packed_row(source), packed);
  }
  std::sort(sources.begin(), sources.end());
  std::vector<int> all(order.source_rows);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(sources, all);
  EXPECT_EQ(order.source_row(order.packed_rows()), RowOrder::kNoRow);
}

TEST(Int4RowOrder, NoRowIsLostOrDoubled) {
  expect_bijection(RowOrder::natural(1));
  expect_bijection(RowOrder::natural(4100));
  expect_bijection(RowOrder::gate_up(14336));
  expect_bijection(RowOrder::gate_up(1001));
  expect_bijection(RowOrder::qkv(32, 8, 128));
  expect_bijection(RowOrder::qkv(32, 8, 64));
  expect_bijection(RowOrder::qkv(3, 3, 64));
}

TEST(Int4RowOrder, GateAndUpOfAChannelAreRowsGAndGPlus8OfOneStrip) {
  for (const int channels : {8, 13, 640}) {
    const RowOrder order = RowOrder::gate_up(channels);
    EXPECT_EQ(order.packed_rows() % 16, 0);
    for (int channel = 0; channel < channels; ++channel) {
      const int gate = order.packed_row(channel);
      EXPECT_LT(gate % 16, 8);
      EXPECT_EQ(order.packed_row(channels + channel), gate + 8);
      EXPECT_EQ(gate / 16, channel / 8);
    }
  }
}

TEST(Int4RowOrder, ARopePairIsRowsGAndGPlus8OfOneStripOfItsHead) {
  for (const int head_dim : {64, 128}) {
    const RowOrder order = RowOrder::qkv(4, 2, head_dim);
    for (int head = 0; head < 6; ++head) {
      for (int dim = 0; dim < head_dim / 2; ++dim) {
        const int first = order.packed_row(head * head_dim + dim);
        EXPECT_LT(first % 16, 8);
        EXPECT_EQ(order.packed_row(head * head_dim + dim + head_dim / 2), first + 8);
        EXPECT_EQ(first / head_dim, head);
      }
    }
  }
}

TEST(Int4RowOrder, ValueHeadsStandAsTheyCome) {
  const RowOrder order = RowOrder::qkv(4, 2, 64);
  for (int row = 6 * 64; row < 8 * 64; ++row) EXPECT_EQ(order.packed_row(row), row);
}

}  // namespace
}  // namespace fut
