// The product of a prompt's tokens on the GPU: exact for small integers at every number of tokens and all
// borders of tiles, in every instance; the same bits whatever the tile, the cluster and the tokens
// beside; close to float64 where sums round. And the host's half: which tiles there are.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/layout/prompt_tile.h"
#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/formats.h"
#include "tests/support/backends.h"

#if FUT_CUDA
#include "kernels/cuda/prompt_ops.h"
#include "tests/support/on_device.h"
#include "tests/support/tensor_core_sums.h"
#endif

namespace fut::test {
namespace {

TEST(PromptTile, SwizzleKeepsRowsApartAndSpreadsThemOverBanks) {
  for (int place = 0; place < 16; ++place) {
    std::set<int> units;
    for (int byte = 0; byte < layout::kPromptRowBytes; ++byte) {
      const int at = layout::swizzled(place, byte);
      EXPECT_EQ(at / layout::kPromptRowBytes, place);
      EXPECT_EQ(at % 16, byte % 16);
      units.insert(at / 16);
    }
    EXPECT_EQ(units.size(), 8U);
  }
  // The same 16 bytes of eight rows lie in eight different sixteens of the 32 banks.
  std::set<int> banks;
  for (int place = 0; place < 8; ++place) banks.insert(layout::swizzled(place, 48) % 128 / 16);
  EXPECT_EQ(banks.size(), 8U);
}

TEST(PromptTile, SumsOfAWarpgroupAreAllOfATile) {
  std::set<std::pair<int, int>> seen;
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < 128; ++i) {
      const layout::PromptSum sum = layout::prompt_sum(thread, i);
      EXPECT_TRUE(sum.token >= 0 && sum.token < 64 && sum.place >= 0 && sum.place < 256);
      seen.insert({sum.token, sum.place});
    }
  }
  EXPECT_EQ(seen.size(), 64U * 256U);
}

#if FUT_CUDA

using cuda::PromptGemmPlan;
using cuda::PromptProduct;

constexpr cuda::Int4GemmMachine kMachine{132, 66, 30, 15};

PromptProduct shape_of(std::int64_t tokens, std::vector<int> parts, int cols, int code_bytes,
                       bool paired) {
  PromptProduct product;
  product.tokens = tokens;
  product.num_parts = static_cast<int>(parts.size());
  int begin = 0;
  for (int i = 0; i < product.num_parts; ++i) {
    const int rows = parts[static_cast<std::size_t>(i)];
    product.parts[i] = {nullptr, begin, rows};
    begin += rows;
  }
  product.cols = cols;
  product.code_bytes = code_bytes;
  product.paired = paired;
  return product;
}

void expect_every_tile_once(const PromptProduct& product, const PromptGemmPlan& plan) {
  const cuda::PromptGemmArgs& a = plan.args;
  std::set<std::tuple<int, int, int>> seen;
  for (int i = 0; i < a.num_tiles; ++i) {
    const cuda::PromptTile tile = a.tile(i);
    EXPECT_EQ(tile.token_tile % a.cluster, 0);
    EXPECT_LT(tile.token_tile * layout::kPromptTileTokens, product.tokens);
    EXPECT_LT(tile.row, product.parts[tile.part].rows);
    EXPECT_EQ(tile.row % a.rows_of_tile, 0);
    EXPECT_TRUE(seen.insert({tile.token_tile, tile.part, tile.row}).second);
  }
  std::size_t expected = 0;
  for (int p = 0; p < (product.paired ? 1 : product.num_parts); ++p) {
    expected +=
        static_cast<std::size_t>((product.parts[p].rows + a.rows_of_tile - 1) / a.rows_of_tile);
  }
  const auto tokens = static_cast<std::size_t>(layout::kPromptTileTokens * a.cluster);
  expected *= (static_cast<std::size_t>(product.tokens) + tokens - 1) / tokens;
  EXPECT_EQ(seen.size(), expected);
}

TEST(PromptGemmPlan, TakesEveryTileOnce) {
  for (const std::int64_t tokens : {1, 127, 128, 129, 257, 2048, 4000, 8192}) {
    for (const int tile_rows : {128, 256}) {
      for (const int cluster : {1, 2}) {
        for (const auto& parts : {std::vector<int>{4096}, {4096, 1024, 1024}, {33, 7, 300}}) {
          const PromptProduct product = shape_of(tokens, parts, 512, 1, false);
          expect_every_tile_once(
              product, cuda::make_prompt_plan(product, tile_rows, cluster, true, kMachine));
        }
        for (const int channels : {13, 128, 14336}) {
          const PromptProduct product = shape_of(tokens, {channels, channels}, 512, 1, true);
          expect_every_tile_once(
              product, cuda::make_prompt_plan(product, tile_rows, cluster, true, kMachine));
        }
      }
    }
  }
}

TEST(PromptGemmPlan, FitsABlockAndSpreadsWholeBlocksOfRowsAlone) {
  for (const int rows : {32, 33, 4096}) {
    const PromptGemmPlan plan =
        cuda::make_prompt_plan(shape_of(200, {rows}, 512, 1, false), 256, 2, true, kMachine);
    EXPECT_EQ(plan.args.spread, rows % layout::kSpreadRows == 0);
  }
  EXPECT_LE(cuda::prompt_shared_bytes(256), cuda::kMaxSharedBytes);
  EXPECT_LE(cuda::prompt_shared_bytes(128), cuda::kMaxSharedBytes);
}

// ---- on the GPU ----------------------------------------------------------------------------------

struct Variant {
  int tile_rows, cluster;
  bool spread;
  [[nodiscard]] std::string name() const {
    return std::to_string(tile_rows) + " rows, clusters of " + std::to_string(cluster) +
           (spread ? ", spread" : ", as they come");
  }
};
std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const int tile_rows : {128, 256}) {
    for (const int cluster : {1, 2}) {
      for (const bool spread : {true, false}) all.push_back({tile_rows, cluster, spread});
    }
  }
  return all;
}

// Operands of one type on the device, and as numbers on the host.
class Product {
 public:
  Product(OnDevice& device, int code_bytes, std::int64_t tokens, std::vector<int> parts, int cols,
          std::vector<float> x, std::vector<float> w, std::vector<float> scales)
      : device_(device),
        shape_(shape_of(tokens, parts, cols, code_bytes, false)),
        x_(std::move(x)),
        w_(std::move(w)),
        scales_(std::move(scales)) {
    shape_.x = upload(x_);
    shape_.x_stride = cols;
    for (int i = 0; i < shape_.num_parts; ++i) {
      upload_part(i);
    }
    if (code_bytes == 1) {
      shape_.row_scales = device.copy(std::span<const float>(scales_));
    } else {
      scales_.assign(static_cast<std::size_t>(shape_.rows()), 1.0F);
    }
  }

  // The first `tokens` tokens; what lies beside the results must stay as it was.
  [[nodiscard]] std::vector<float> run(const Variant& v, std::int64_t tokens) const {
    constexpr std::int64_t kGap = 8;
    const std::int64_t rows = shape_.rows();
    const std::int64_t stride = (rows + 7) / 8 * 8 + kGap;
    std::vector<float> poison(static_cast<std::size_t>((tokens + 2) * stride), -12345.0F);
    float* out = device_.copy(std::span<const float>(poison));
    PromptProduct product = shape_;
    product.tokens = tokens;
    const PromptGemmPlan plan = cuda::make_prompt_plan(product, v.tile_rows, v.cluster, v.spread,
                                                       device_.context().machine());
    cuda::prompt_project(product, plan, {out, tokens, rows, stride}, device_.context());
    const std::vector<float> all = device_.fetch(out, poison.size());
    std::vector<float> result;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto column = static_cast<std::int64_t>(i) % stride;
      if (static_cast<std::int64_t>(i) / stride < tokens && column < rows) {
        result.push_back(all[i]);
      } else if (all[i] != -12345.0F) {
        ADD_FAILURE() << "wrote beside the results, token " << static_cast<std::int64_t>(i) / stride
                      << ", row " << column;
        break;
      }
    }
    return result;
  }

  // In float64.
  [[nodiscard]] std::vector<double> expected(std::int64_t tokens) const {
    std::vector<double> result;
    const int cols = shape_.cols;
    for (std::int64_t m = 0; m < tokens; ++m) {
      for (std::int64_t n = 0; n < shape_.rows(); ++n) {
        const float* x = x_.data() + m * cols;
        const float* w = w_.data() + n * cols;
        double sum = 0;
        for (int k = 0; k < cols; ++k) sum += static_cast<double>(x[k]) * static_cast<double>(w[k]);
        result.push_back(sum * static_cast<double>(scales_[static_cast<std::size_t>(n)]));
      }
    }
    return result;
  }
  [[nodiscard]] std::int64_t rows() const { return shape_.rows(); }

 private:
  void upload_part(int i) {
    const auto begin = w_.begin() + std::int64_t{shape_.parts[i].begin} * shape_.cols;
    std::vector<float> part(begin, begin + std::int64_t{shape_.parts[i].rows} * shape_.cols);
    shape_.parts[i].data = upload(part);
  }
  // Rounds `values` to the operand's type.
  const void* upload(std::vector<float>& values) {
    if (shape_.code_bytes == 1) {
      std::vector<std::uint8_t> codes;
      for (float& v : values) codes.push_back(f32_to_e4m3(v)), v = e4m3_to_f32(codes.back());
      return device_.copy(std::span<const std::uint8_t>(codes));
    }
    std::vector<std::uint16_t> codes;
    for (float& v : values) codes.push_back(f32_to_bf16(v)), v = bf16_to_f32(codes.back());
    return device_.copy(std::span<const std::uint16_t>(codes));
  }

  OnDevice& device_;
  PromptProduct shape_;
  std::vector<float> x_, w_, scales_;
};

// Powers of two of either sign.
std::vector<float> power_scales(std::int64_t rows) {
  constexpr float kScales[] = {0.5F, -1.0F, 2.0F, 0.25F, 1.0F, -4.0F, 8.0F};
  std::vector<float> scales;
  for (std::int64_t n = 0; n < rows; ++n) scales.push_back(kScales[n % 7]);
  return scales;
}

Product integer_product(OnDevice& device, int code_bytes, std::int64_t tokens,
                        const std::vector<int>& parts, int cols) {
  std::int64_t rows = 0;
  for (const int r : parts) rows += r;
  return {device,
          code_bytes,
          tokens,
          parts,
          cols,
          integer_values(tokens * cols, 1, 4),
          integer_values(rows * cols, 2, 8),
          power_scales(rows)};
}

testing::AssertionResult equal(const std::vector<double>& expected,
                               const std::vector<float>& actual, std::int64_t rows) {
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (expected[i] == static_cast<double>(actual[i])) continue;
    return testing::AssertionFailure()
           << "token " << static_cast<std::int64_t>(i) / rows << ", row "
           << static_cast<std::int64_t>(i) % rows << ": " << actual[i] << ", not " << expected[i];
  }
  return testing::AssertionSuccess();
}

TEST(PromptGemmCuda, IsExactForSmallIntegersInEveryInstance) {
  FUT_REQUIRE_GPU_DEVICE();
  for (const int code_bytes : {1, 2}) {
    for (const auto& [parts, cols] :
         std::vector<std::pair<std::vector<int>, int>>{{{32}, 16},
                                                       {{256}, 128},
                                                       {{1}, 128},
                                                       {{33}, 144},
                                                       {{127}, 256},
                                                       {{129}, 64},
                                                       {{288}, 384},
                                                       {{255}, 1040},
                                                       {{257}, 512},
                                                       {{544}, 640},
                                                       {{64, 32, 32}, 256},
                                                       {{300, 7, 33}, 256}}) {
      OnDevice device;
      constexpr std::int64_t kTokens = 300;
      const Product product = integer_product(device, code_bytes, kTokens, parts, cols);
      const std::vector<double> expected = product.expected(kTokens);
      for (const Variant& v : variants()) {
        for (const std::int64_t tokens :
             {1, 8, 63, 64, 65, 127, 128, 129, 192, 255, 256, 257, 300}) {
          ASSERT_TRUE(equal(expected, product.run(v, tokens), product.rows()))
              << code_bytes << " bytes, " << product.rows() << " rows, " << cols << " columns, "
              << tokens << " tokens, " << v.name();
        }
      }
    }
  }
}

TEST(PromptGemmCuda, TakesEveryNumberOfTokens) {
  FUT_REQUIRE_GPU_DEVICE();
  OnDevice device;
  const Product product = integer_product(device, 1, 300, {160}, 256);
  const std::vector<double> expected = product.expected(300);
  const std::vector<Variant> all = variants();
  for (std::int64_t tokens = 1; tokens <= 300; ++tokens) {
    const Variant& v = all[static_cast<std::size_t>(tokens) % all.size()];
    ASSERT_TRUE(equal(expected, product.run(v, tokens), product.rows()))
        << tokens << ", " << v.name();
  }
}

// More tiles than blocks, rings that go round many times, several bands of the raster.
TEST(PromptGemmCuda, IsExactOverManyTilesOfABlock) {
  FUT_REQUIRE_GPU_DEVICE();
  for (const int code_bytes : {1, 2}) {
    OnDevice device;
    const Product product = integer_product(device, code_bytes, 2500, {3000}, 80);
    const std::vector<double> expected = product.expected(2500);
    for (const Variant& v : variants()) {
      ASSERT_TRUE(equal(expected, product.run(v, 2500), product.rows())) << v.name();
    }
  }
}

// The accumulator of E4M3 products holds 14 bits at least: what the exact tests rely on.
TEST(PromptGemmCuda, AddsIntegersBelowTwoToThe13thExactly) {
  FUT_REQUIRE_GPU_DEVICE();
  OnDevice device;
  constexpr int kCols = 1024;
  constexpr int kRows = 64;
  // Row n: 7 times 8 x 8 x 16 = 7168 in the first columns, then n ones, one at a time.
  std::vector<float> x(kCols, 1.0F);
  std::vector<float> w(static_cast<std::size_t>(kRows * kCols));
  for (int k = 0; k < 128; ++k) x[static_cast<std::size_t>(k)] = 8;
  for (int n = 0; n < kRows; ++n) {
    for (int k = 0; k < 112; ++k) w[static_cast<std::size_t>(n * kCols + k)] = 8;
    for (int k = 0; k < n; ++k) w[static_cast<std::size_t>(n * kCols + 128 + 13 * k)] = 1;
  }
  const Product product(device, 1, 1, {kRows}, kCols, x, w, std::vector<float>(kRows, 1.0F));
  EXPECT_TRUE(equal(product.expected(1), product.run({256, 1, true}, 1), kRows));
}

// How many of the results are what the rules of tensor_core_sums.h say. Told, not asked for: of those rules
// errors alone have been compared with a chip's.
double share_of_tensor_core_sums(const std::vector<float>& x, const std::vector<float>& w,
                                 std::int64_t cols, float scale,
                                 const std::vector<float>& results) {
  const std::int64_t tokens = std::ssize(x) / cols;
  const std::int64_t rows = std::ssize(w) / cols;
  std::vector<float> sums(results.size());
  tensor_core_dots(
      {x.data(), cols, tokens, DType::F32, w.data(), cols, rows, cols, sums.data(), rows});
  double same = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) same += sums[i] * scale == results[i] ? 1 : 0;
  return same / static_cast<double>(sums.size());
}

TEST(PromptGemmCuda, GivesTheSameBitsInEveryInstanceAndForEveryNumberOfTokens) {
  FUT_REQUIRE_GPU_DEVICE();
  for (const int code_bytes : {1, 2}) {
    for (const int cols : {4096, 14336}) {
      OnDevice device;
      constexpr std::int64_t kTokens = 200;
      constexpr int kRows = 288;
      const auto numbers = [&](std::int64_t count, std::uint32_t seed, float size) {
        std::vector<float> values = normal_values(count, seed, size);
        for (float& v : values) v = rounded_to(code_bytes == 1 ? DType::E4M3 : DType::BF16, v);
        return values;
      };
      const std::vector<float> x = numbers(kTokens * cols, 1, 4.0F);
      const std::vector<float> w = numbers(std::int64_t{kRows} * cols, 2, 30.0F);
      constexpr float kScale = 0.01F;
      const Product product(device, code_bytes, kTokens, {kRows}, cols, x, w,
                            std::vector<float>(kRows, kScale));
      const std::vector<float> first = product.run(variants()[0], kTokens);
      for (const Variant& v : variants()) {
        for (const std::int64_t tokens : {std::int64_t{1}, std::int64_t{70}, kTokens}) {
          const std::vector<float> part(first.begin(), first.begin() + tokens * kRows);
          EXPECT_TRUE(same_bits(part, product.run(v, tokens), {tokens, kRows})) << v.name();
        }
      }
      const std::vector<double> expected = product.expected(kTokens);
      double squares = 0;
      double errors = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        squares += expected[i] * expected[i];
        errors += std::pow(static_cast<double>(first[i]) - expected[i], 2);
      }
      const double relative = std::sqrt(errors / squares);
      // A step of 32 bytes of K may lose a unit of the accumulator (14 bits for E4M3, at least 23 else) of
      // the sum so far, which for random numbers grows with the root of the number of steps.
      const double steps = static_cast<double>(cols * code_bytes) / 32;
      const double bound = 2.0 / 3 * steps * (code_bytes == 1 ? 0x1p-13 : 0x1p-22);
      std::printf("%d bytes, %d columns: relative error %.3g (bound %.3g)\n", code_bytes, cols,
                  relative, bound);
      EXPECT_LT(relative, bound);
      if (code_bytes == 1) {
        std::printf("  the bits of tensor_core_dots(): %.4f of them\n",
                    share_of_tensor_core_sums(x, w, cols, kScale, first));
      }
    }
  }
}

#else

TEST(PromptGemmCuda, IsExactForSmallIntegersInEveryInstance) {
  FUT_REQUIRE_GPU_DEVICE();
}

#endif

}  // namespace
}  // namespace fut::test
