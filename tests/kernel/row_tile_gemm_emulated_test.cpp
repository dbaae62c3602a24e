// The row product of 9 to 32 tokens, its own source, on the CPU (tests/emulator): whatever the edges of
// rows, columns and tokens, sums have the order of columns, segments and tree that fewer tokens have; every
// output is written once and nothing beside; no order of turns or arrivals changes that.
#include <array>
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/row_tile_gemm.cuh"
#include "kernels/numeric/formats.h"
#include "tests/support/compare.h"

namespace fut::test {
namespace {

constexpr int kMostTokens = 32;
constexpr int kGap = 3;  // floats between rows of outputs

// Codes as row_formats.cuh widens them, without its instructions.
struct Int8Codes {
  static void widen(std::uint32_t& low, std::uint32_t& high, std::uint32_t codes) {
    const auto half = [&](int i) {
      return std::uint32_t{f32_to_f16_saturating(
          static_cast<float>(static_cast<std::int8_t>(codes >> 8 * i & 0xFFU)))};
    };
    low = half(0) | half(1) << 16;
    high = half(2) | half(3) << 16;
  }
  static float finish(float sum, const float* row_scales, int row, float factor, float r) {
    return sum * (row_scales[row] * factor) * r;
  }
};

struct Target {
  float* values;
  int* writes;
  std::int64_t stride;

  void store(int token, int lower_row, int upper_row, float lower, float upper) const {
    if (!emulator::has_turn()) emulator::fail("writes before its turn");
    put(token, lower_row, lower);
    put(token, upper_row, upper);
  }
  void put(int token, int row, float value) const {
    if (row < 0) return;
    values[token * stride + row] = value;
    ++writes[token * stride + row];
  }
};

class Problem {
 public:
  Problem(int num_rows, int num_cols, bool is_paired = false)
      : rows(num_rows),
        cols(num_cols),
        paired(is_paired),
        codes_(static_cast<std::size_t>(rows) * cols),
        x_(static_cast<std::size_t>(kMostTokens) * cols) {
    std::mt19937 engine(static_cast<unsigned>(rows * 7 + cols));
    for (auto& code : codes_) code = static_cast<std::int8_t>(engine() >> 24);
    for (auto& v : x_) {
      v = f32_to_f16_saturating(static_cast<float>(engine() % 4001) / 1000.0F - 2.0F);
    }
    for (int row = 0; row < rows; ++row) {
      row_scales.push_back(0.5F + static_cast<float>(engine() % 97) / 64.0F);
    }
    for (int token = 0; token < kMostTokens; ++token) {
      factors.push_back(1.0F + static_cast<float>(engine() % 31) / 32.0F);
    }
    for (int token = 0; token < kMostTokens; ++token) {
      for (int row = 0; row < rows; ++row) {
        expected.push_back(
            Int8Codes::finish(sum(row, token), row_scales.data(), row, 1.0F, factors[token]));
      }
    }
  }

  [[nodiscard]] int num_chunks() const { return (cols + 63) / 64; }
  // Paired: the first half of the rows with the second one.
  [[nodiscard]] layout::RowOrder order() const {
    return paired ? layout::RowOrder::gate_up(rows / 2) : layout::RowOrder::natural(rows);
  }
  [[nodiscard]] int num_strips() const { return (order().packed_rows() + 15) / 16; }
  // Boxes of whole strips, or of their halves.
  [[nodiscard]] CUtensorMap map() const {
    return {.data = codes_.data(),
            .element_bytes = 1,
            .sizes = {cols, rows, 1},
            .strides = {cols, 0},
            .box = {128, cuda::row_tile_box_rows(paired), 1},
            .is_constant = true};
  }

  // As layout/row_tile.h has them; tokens that are not asked for are NaN.
  [[nodiscard]] std::vector<std::uint8_t> operands(int tokens, int tiles) const {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(num_chunks()) * tiles * 1024);
    for (int token = 0; token < 8 * tiles; ++token) {
      for (int k = 0; k < 64 * num_chunks(); ++k) {
        std::uint16_t bits = 0x7FFF;
        if (token < tokens) bits = k < cols ? half(token, k) : std::uint16_t{0};
        const std::size_t chunk = static_cast<std::size_t>(k / 64) * tiles * 1024;
        const int byte = layout::tile_operand(token, k % 64 / 4 * 4, k % 4 / 2) + k % 2 * 2;
        std::memcpy(bytes.data() + chunk + static_cast<std::size_t>(byte), &bits, 2);
      }
    }
    return bytes;
  }

  int rows, cols;
  bool paired;
  std::vector<float> row_scales, factors;
  std::vector<float> expected;  // [token][row]

 private:
  [[nodiscard]] std::int8_t code(int row, int k) const {
    return codes_[static_cast<std::size_t>(row) * cols + k];
  }
  [[nodiscard]] std::uint16_t half(int token, int k) const {
    return x_[static_cast<std::size_t>(token) * cols + k];
  }
  // Step after step of a segment's chunks, of four neighbouring columns in each sixteen, twice two.
  [[nodiscard]] float sum(int row, int token) const {
    std::array<float, layout::kNumKSegments> segments{};
    for (int s = 0; s < layout::kNumKSegments; ++s) {
      float chain = 0;
      for (int chunk = layout::k_segment_begin(s, num_chunks());
           chunk < layout::k_segment_begin(s + 1, num_chunks()); ++chunk) {
        for (int i = 0; i < 64; ++i) {
          const int place = i % 16;
          const int k = 64 * chunk + place / 2 % 4 * 16 + i / 16 * 4 + place / 8 * 2 + place % 2;
          if (k >= cols) continue;
          chain += static_cast<float>(code(row, k)) * f16_to_f32(half(token, k));
        }
      }
      segments[static_cast<std::size_t>(s)] = chain;
    }
    return layout::merge_k_segments(segments);
  }

  std::vector<std::int8_t> codes_;
  std::vector<std::uint16_t> x_;
};

// Empty, or what is wrong.
template <int kTiles, bool kPaired>
std::string run(const Problem& p, int tokens, int clusters, std::uint32_t seed) {
  const std::vector<std::uint8_t> operands = p.operands(tokens, kTiles);
  const CUtensorMap map = p.map();
  cuda::RowTileGemmArgs args;
  args.order = p.order();
  args.num_strips = p.num_strips();
  args.num_chunks = p.num_chunks();
  args.num_tokens = tokens;
  args.row_scales = p.row_scales.data();
  args.factors = p.factors.data();
  args.operands = operands.data();
  const std::int64_t stride = p.rows + kGap;
  constexpr float kUntouched = 12345.0F;
  std::vector<float> values(static_cast<std::size_t>(kMostTokens * stride), kUntouched);
  std::vector<int> writes(values.size());
  const Target target{values.data(), writes.data(), stride};
  const emulator::Launch launch{.num_blocks = clusters * cuda::kRowTileCluster,
                                .cluster = cuda::kRowTileCluster,
                                .threads = cuda::kRowTileThreads,
                                .shared_bytes = cuda::row_tile_shared_bytes(kTiles),
                                .readable = operands.data(),
                                .readable_bytes = static_cast<std::int64_t>(operands.size()),
                                .seed = seed};
  const std::string error = emulator::run(launch, [&](std::uint8_t* shared) {
    cuda::run_row_tile_gemm<Int8Codes, kTiles, kPaired>(map, args, target, shared);
  });
  if (!error.empty()) return error;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto token = static_cast<int>(static_cast<std::int64_t>(i) / stride);
    const auto row = static_cast<int>(static_cast<std::int64_t>(i) % stride);
    const std::string where = " at token " + std::to_string(token) + ", row " + std::to_string(row);
    if (token >= tokens || row >= p.rows) {
      if (writes[i] != 0) return "written beside," + where;
      continue;
    }
    if (writes[i] != 1) return "written " + std::to_string(writes[i]) + " times," + where;
    const float wanted = p.expected[static_cast<std::size_t>(token) * p.rows + row];
    if (std::memcmp(&wanted, &values[i], 4) != 0) {
      return std::to_string(values[i]) + " in place of " + std::to_string(wanted) + where;
    }
  }
  return {};
}

std::string run(const Problem& p, int tokens, int clusters, std::uint32_t seed) {
  if (p.paired) {
    return tokens <= 16 ? run<2, true>(p, tokens, clusters, seed)
                        : run<4, true>(p, tokens, clusters, seed);
  }
  return tokens <= 16 ? run<2, false>(p, tokens, clusters, seed)
                      : run<4, false>(p, tokens, clusters, seed);
}

struct SmallShape {
  int rows, cols, clusters;
};
// One row and one segment; strips that one block has alone, or none; odd numbers of chunks, columns that
// fill no chunk; rings that go round, several tiles of a block, uneven ones.
constexpr SmallShape kShapes[] = {{1, 16, 1},    {16, 128, 1},   {40, 96, 2},    {70, 384, 1},
                                  {200, 576, 3}, {530, 1040, 1}, {1100, 448, 1}, {250, 2112, 2}};

TEST(RowTileGemmEmulated, GivesTheSumsOfFewerTokensWhateverTheOrderOfTurns) {
  std::uint32_t seed = 0;
  for (const SmallShape& shape : kShapes) {
    const Problem problem(shape.rows, shape.cols);
    for (const int tokens : {9, 16, 17, 32}) {
      EXPECT_EQ(run(problem, tokens, shape.clusters, seed), "")
          << shape.rows << " x " << shape.cols << ", " << tokens << " tokens, seed " << seed;
      ++seed;
    }
  }
}

// Halves that fill strips and such that do not.
TEST(RowTileGemmEmulated, TakesHalvesOfStripsFromTwoPlaces) {
  std::uint32_t seed = 0;
  for (const SmallShape& shape :
       {SmallShape{2, 16, 1}, {32, 128, 1}, {74, 320, 2}, {1090, 192, 1}}) {
    const Problem problem(shape.rows, shape.cols, true);
    for (const int tokens : {9, 16, 17, 32}) {
      EXPECT_EQ(run(problem, tokens, shape.clusters, seed), "")
          << shape.rows << " x " << shape.cols << ", " << tokens << " tokens, seed " << seed;
      ++seed;
    }
  }
}

TEST(RowTileGemmEmulated, GivesTheSameWithEverySeedOnOneShape) {
  const Problem problem(300, 704);
  for (std::uint32_t seed = 0; seed < 24; ++seed) {
    EXPECT_EQ(run(problem, seed % 2 == 0 ? 20 : 11, 1, seed), "") << seed;
  }
}

}  // namespace
}  // namespace fut::test
