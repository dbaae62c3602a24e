// Asks the chip itself whether layout/int4_tile.h and layout/kv_page_int4.h read the PTX manual
// right: buffers packed by slot() go through the real mma and wgmma, and every code must come out
// in its own row, multiplied by its own column. All operands are small integers and powers of two,
// so results are exact and compared as such. Also: the conversion instructions against
// kernels/numeric, on every input there is. Needs a Hopper GPU; skips without one, and fails under
// FUT_REQUIRE_GPU=1.
#include <cmath>
#include <cstdlib>
#include <gtest/gtest.h>
#include <random>
#include <string_view>

#include "kernels/numeric/formats.h"
#include "kernels/numeric/int4_code.h"
#include "tests/kernel/fragment_probe.h"

namespace fut::test {
namespace {

using layout::Int4Slot;
using layout::Int4Tile;
using layout::KvPageInt4;
using layout::KvPart;

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = gpu_missing();
    if (missing.empty()) return;
    const char* required = std::getenv("FUT_REQUIRE_GPU");
    if (required != nullptr && std::string_view(required) == "1") {
      FAIL() << missing << " (FUT_REQUIRE_GPU=1)";
    }
    GTEST_SKIP() << missing;
  }
};

// ---- data --------------------------------------------------------------------------------------

// B's eight columns, each contiguous: as numbers and as FP16.
struct Operand {
  std::vector<float> values;
  std::vector<std::uint16_t> f16;
  int rows = 0;

  [[nodiscard]] float at(int row, int column) const { return values[column * rows + row]; }
};

template <class Value>
Operand make_operand(int rows, Value value) {
  Operand operand;
  operand.rows = rows;
  for (int column = 0; column < kProbeColumns; ++column) {
    for (int row = 0; row < rows; ++row) {
      operand.values.push_back(static_cast<float>(value(row, column)));
      operand.f16.push_back(f32_to_f16(operand.values.back()));
    }
  }
  return operand;
}

// Integers 0 .. 130; up to 128 rows, no two rows are alike and no two columns of a row, so that a
// row of the result tells which row of B it came from, and a column which column.
Operand telling_operand(int rows) {
  return make_operand(rows, [](int row, int column) { return (8 * row + column + 1) % 131; });
}

// A float32 holds every partial sum exactly if the sum of magnitudes stays below 2^24.
void expect_exact_sums(const Operand& b, int largest_factor) {
  for (int column = 0; column < kProbeColumns; ++column) {
    double magnitude = 0;
    for (int row = 0; row < b.rows; ++row) {
      magnitude += std::abs(double{b.at(row, column)}) * largest_factor;
    }
    ASSERT_LT(magnitude, 0x1p24);
  }
}

constexpr int kLargestUnpacked = 15 + layout::kInt4CodeBias;  // in units, the bias apart

void write_u16(std::vector<std::uint8_t>& buffer, std::int64_t offset, std::uint16_t bits) {
  buffer.at(offset) = static_cast<std::uint8_t>(bits);
  buffer.at(offset + 1) = static_cast<std::uint8_t>(bits >> 8);
}

// All codes zero, all scales one.
std::vector<std::uint8_t> pack_zeros(const Int4Tile& tile) {
  std::vector<std::uint8_t> packed(tile.bytes(), 0x11 * layout::kInt4CodeBias);
  for (int row = 0; row < tile.num_strips() * Int4Tile::kStripRows; ++row) {
    for (int group = 0; group < tile.num_groups(); ++group) {
      write_u16(packed, tile.scale_offset(row, group), Int4Scale::nearest(1.0F).bf16);
    }
  }
  return packed;
}

// All codes, scales and minima zero but for the scales of one part, which are one.
std::vector<std::uint8_t> pack_zeros(const KvPageInt4& page, KvPart part) {
  std::vector<std::uint8_t> packed(page.bytes(), 0);
  for (int head = 0; head < page.num_kv_heads; ++head) {
    for (int token = 0; token < layout::kPageTokens; ++token) {
      for (int group = 0; group < page.num_groups(); ++group) {
        write_u16(packed, page.params_offset(part, head, token, group), f32_to_f16(1.0F));
      }
    }
  }
  return packed;
}

// Stops at the first wrong number and says which; `expected(i)` gives entry i of the result.
template <class Expected, class Name>
void expect_equal(const std::vector<float>& result, Expected expected, Name name) {
  for (std::size_t i = 0; i < result.size(); ++i) {
    ASSERT_EQ(result[i], expected(i))
        << name(i / kProbeColumns) << ", column " << i % kProbeColumns;
  }
}

// ---- weights -----------------------------------------------------------------------------------

struct WeightCase {
  Instruction instruction;
  int group;
};

std::string name_of(const testing::TestParamInfo<WeightCase>& info) {
  return std::string(info.param.instruction == Instruction::Mma ? "Mma" : "Wgmma") + "Group" +
         std::to_string(info.param.group);
}

class WeightFragment : public GpuTest, public testing::WithParamInterface<WeightCase> {};

// A tile of the instruction (16 or 64 rows) for each place in it and in 128 columns, with one code
// there that is not zero: -8 and 7 in turn.
TEST_P(WeightFragment, EachCodeMeetsItsOwnColumnAndComesOutInItsOwnRow) {
  constexpr int kCols = 128;
  const int tile_rows = GetParam().instruction == Instruction::Mma ? 16 : 64;
  const int places = tile_rows * kCols;
  const Int4Tile tile{places * tile_rows, kCols, GetParam().group};
  const auto code_of = [](int place) { return place % 2 == 0 ? kInt4Min : kInt4Max; };

  std::vector<std::uint8_t> packed = pack_zeros(tile);
  for (int place = 0; place < places; ++place) {
    const Int4Slot slot = tile.slot(place * tile_rows + place / kCols, place % kCols);
    layout::write_nibble(packed.data(), slot, code_of(place) + layout::kInt4CodeBias);
  }
  const Operand x = telling_operand(kCols);
  expect_exact_sums(x, kLargestUnpacked);

  const std::vector<float> y = multiply_weights(tile, packed, x.f16, GetParam().instruction);
  expect_equal(
      y,
      [&](std::size_t i) {
        const int row = static_cast<int>(i) / kProbeColumns;
        const int place = row / tile_rows;
        const bool hot = row % tile_rows == place / kCols;
        const float value = x.at(place % kCols, static_cast<int>(i) % kProbeColumns);
        return hot ? static_cast<float>(code_of(place)) * value : 0.0F;
      },
      [&](std::size_t row) {
        const int place = static_cast<int>(row) / tile_rows;
        return "code at (" + std::to_string(place / kCols) + ", " + std::to_string(place % kCols) +
               "), output row " + std::to_string(row % tile_rows);
      });
}

// Codes and scales drawn at random, a last strip that is not full, against two plain loops over the
// matrix as it was drawn.
TEST_P(WeightFragment, RandomCodesAndScalesGiveTheProductOfPlainLoops) {
  const Int4Tile tile{100, 384, GetParam().group};
  std::mt19937 random(20250801);
  std::vector<std::uint8_t> packed(tile.bytes(), 0);
  std::vector<double> weights(tile.rows * tile.cols);
  for (int row = 0; row < tile.rows; ++row) {
    for (int col = 0; col < tile.cols; col += tile.group) {
      const float sign = random() % 2 == 0 ? 1.0F : -1.0F;
      const Int4Scale scale =
          Int4Scale::nearest(std::ldexp(sign, static_cast<int>(random() % 5) - 2));
      write_u16(packed, tile.scale_offset(row, col / tile.group), scale.bf16);
      for (int k = col; k < col + tile.group; ++k) {
        const int code = static_cast<int>(random() % 16) + kInt4Min;
        weights[row * tile.cols + k] = double{decode_int4(code, scale)};
        layout::write_nibble(packed.data(), tile.slot(row, k), code + layout::kInt4CodeBias);
      }
    }
  }
  const Operand x =
      make_operand(tile.cols, [&](int, int) { return static_cast<int>(random() % 17) - 8; });
  expect_exact_sums(x, kLargestUnpacked);

  const std::vector<float> y = multiply_weights(tile, packed, x.f16, GetParam().instruction);
  expect_equal(
      y,
      [&](std::size_t i) {
        const int row = static_cast<int>(i) / kProbeColumns;
        double sum = 0;
        for (int k = 0; row < tile.rows && k < tile.cols; ++k) {
          sum += weights[row * tile.cols + k] * x.at(k, static_cast<int>(i) % kProbeColumns);
        }
        return static_cast<float>(sum);
      },
      [](std::size_t row) { return "row " + std::to_string(row); });
}

INSTANTIATE_TEST_SUITE_P(Instructions, WeightFragment,
                         testing::Values(WeightCase{Instruction::Mma, 128},
                                         WeightCase{Instruction::Mma, 64},
                                         WeightCase{Instruction::Wgmma, 128},
                                         WeightCase{Instruction::Wgmma, 64}),
                         name_of);

// ---- keys and values ---------------------------------------------------------------------------

struct KvCase {
  int head_dim, kv_group;
};

class KvFragment : public GpuTest, public testing::WithParamInterface<KvCase> {
 protected:
  // Rows of a head's result: tokens for keys, dims for values.
  [[nodiscard]] int result_rows(KvPart part) const {
    return part == KvPart::Key ? layout::kPageTokens : GetParam().head_dim;
  }
  [[nodiscard]] int operand_rows(KvPart part) const {
    return part == KvPart::Key ? GetParam().head_dim : layout::kPageTokens;
  }
  [[nodiscard]] static std::vector<float> multiply(KvPart part, const KvPageInt4& page,
                                                   const std::vector<std::uint8_t>& packed,
                                                   const Operand& b) {
    return part == KvPart::Key ? multiply_keys(page, packed, b.f16)
                               : multiply_values(page, packed, b.f16);
  }

  void expect_each_code_in_its_place(KvPart part) const;
  void expect_products_of_plain_loops(KvPart part) const;
};

// A head for each token and dim, with one code there that is not zero.
void KvFragment::expect_each_code_in_its_place(KvPart part) const {
  const int head_dim = GetParam().head_dim;
  const KvPageInt4 page{layout::kPageTokens * head_dim, head_dim, GetParam().kv_group};
  const auto code_of = [](int head) { return head % 15 + 1; };
  std::vector<std::uint8_t> packed = pack_zeros(page, part);
  for (int head = 0; head < page.num_kv_heads; ++head) {
    const Int4Slot slot = page.slot(part, head, head / head_dim, head % head_dim);
    layout::write_nibble(packed.data(), slot, code_of(head));
  }
  const Operand b = telling_operand(operand_rows(part));
  expect_exact_sums(b, kLargestUnpacked);

  expect_equal(
      multiply(part, page, packed, b),
      [&](std::size_t i) {
        const int row = static_cast<int>(i) / kProbeColumns;
        const int head = row / result_rows(part);
        const int token = head / head_dim, dim = head % head_dim;
        const bool hot = row % result_rows(part) == (part == KvPart::Key ? token : dim);
        const float value =
            b.at(part == KvPart::Key ? dim : token, static_cast<int>(i) % kProbeColumns);
        return hot ? static_cast<float>(code_of(head)) * value : 0.0F;
      },
      [&](std::size_t row) {
        const int head = static_cast<int>(row) / result_rows(part);
        return "code of token " + std::to_string(head / head_dim) + ", dim " +
               std::to_string(head % head_dim) + ", output row " +
               std::to_string(row % result_rows(part));
      });
}

TEST_P(KvFragment, EachKeyCodeMeetsItsOwnDimAndComesOutAtItsOwnToken) {
  expect_each_code_in_its_place(KvPart::Key);
}
TEST_P(KvFragment, EachValueCodeMeetsItsOwnTokenAndComesOutAtItsOwnDim) {
  expect_each_code_in_its_place(KvPart::Value);
}

// Codes, scales (powers of two) and minima (integers) drawn at random in a page of three heads,
// against plain loops over the numbers as they were drawn.
void KvFragment::expect_products_of_plain_loops(KvPart part) const {
  const KvPageInt4 page{3, GetParam().head_dim, GetParam().kv_group};
  std::mt19937 random(20250802);
  std::vector<std::uint8_t> packed(page.bytes(), 0);
  std::vector<double> numbers;  // [head][token][dim]
  for (int i = 0; i < page.num_kv_heads * layout::kPageTokens; ++i) {
    const int head = i / layout::kPageTokens, token = i % layout::kPageTokens;
    double scale = 0, minimum = 0;
    for (int dim = 0; dim < page.head_dim; ++dim) {
      if (dim % page.kv_group == 0) {
        scale = std::ldexp(1.0, static_cast<int>(random() % 4) - 1);
        minimum = static_cast<int>(random() % 17) - 12;
        const std::int64_t params = page.params_offset(part, head, token, dim / page.kv_group);
        write_u16(packed, params, f32_to_f16(static_cast<float>(scale)));
        write_u16(packed, params + 2, f32_to_f16(static_cast<float>(minimum)));
      }
      const int code = static_cast<int>(random() % 16);
      layout::write_nibble(packed.data(), page.slot(part, head, token, dim), code);
      numbers.push_back(minimum + scale * code);
    }
  }
  const Operand b = make_operand(operand_rows(part),
                                 [&](int, int) { return static_cast<int>(random() % 17) - 8; });
  // A value's scale, at most 4, is multiplied into B before the product.
  expect_exact_sums(b, 4 * kLargestUnpacked);

  expect_equal(
      multiply(part, page, packed, b),
      [&](std::size_t i) {
        const int row = static_cast<int>(i) / kProbeColumns, head = row / result_rows(part);
        double sum = 0;
        for (int k = 0; k < b.rows; ++k) {
          const int token = part == KvPart::Key ? row % result_rows(part) : k;
          const int dim = part == KvPart::Key ? k : row % result_rows(part);
          sum += numbers[(head * layout::kPageTokens + token) * page.head_dim + dim] *
                 b.at(k, static_cast<int>(i) % kProbeColumns);
        }
        return static_cast<float>(sum);
      },
      [](std::size_t row) { return "row " + std::to_string(row) + " of all heads"; });
}

TEST_P(KvFragment, RandomKeysGiveTheProductOfPlainLoops) {
  expect_products_of_plain_loops(KvPart::Key);
}
TEST_P(KvFragment, RandomValuesGiveTheProductOfPlainLoops) {
  expect_products_of_plain_loops(KvPart::Value);
}

INSTANTIATE_TEST_SUITE_P(Pages, KvFragment,
                         testing::Values(KvCase{64, 64}, KvCase{64, 32}, KvCase{128, 128},
                                         KvCase{128, 64}, KvCase{128, 32}),
                         [](const auto& instance) {
                           return "Dims" + std::to_string(instance.param.head_dim) + "Group" +
                                  std::to_string(instance.param.kv_group);
                         });

// ---- conversions -------------------------------------------------------------------------------

struct ConversionCase {
  Conversion conversion;
  const char* name;
  std::uint64_t inputs;
};

class ConversionInstruction : public GpuTest, public testing::WithParamInterface<ConversionCase> {};

TEST_P(ConversionInstruction, AgreesWithTheHeaderOnEveryInput) {
  const Disagreement found = compare_conversion(GetParam().conversion);
  EXPECT_EQ(found.inputs, GetParam().inputs);
  EXPECT_EQ(found.count, 0U) << std::hex << "first at input bits 0x" << found.first
                             << ": the instruction gives 0x" << found.instruction
                             << ", the header 0x" << found.header;
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, ConversionInstruction,
    testing::Values(ConversionCase{Conversion::F32ToE4m3, "F32ToE4m3", std::uint64_t{1} << 32},
                    ConversionCase{Conversion::F32ToF16, "F32ToF16", std::uint64_t{1} << 32},
                    ConversionCase{Conversion::F32ToBf16, "F32ToBf16", std::uint64_t{1} << 32},
                    ConversionCase{Conversion::E4m3ToF16, "E4m3ToF16", 1 << 8},
                    ConversionCase{Conversion::F16ToF32, "F16ToF32", 1 << 16}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace fut::test
