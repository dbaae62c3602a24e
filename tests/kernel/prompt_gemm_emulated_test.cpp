// The product of a prompt's tokens on the GPU, its own source, on the CPU (tests/emulator): every instance,
// with and without clusters, rows in spread order and as they come, gate and up side by side; exact for small
// integers, nothing written beside, and no order of turns or arrivals changes a bit.
#include <cstdint>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "kernels/cuda/prompt_gemm.cuh"
#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/formats.h"
#include "tests/support/backends.h"

namespace fut::test {
namespace {

// Few blocks, so that each takes several tiles.
constexpr cuda::Int4GemmMachine kMachine{3, 2, 1, 1};
constexpr float kUntouched = -12345.0F;

// Writes sums times scales to where they belong.
struct StoreEpilogue {
  float* out;
  std::int64_t stride;

  template <class Format, bool kSpread, int kCount>
  void finish(const float (&sums)[kCount], const cuda::PromptGemmArgs& args,
              const cuda::PromptPlace& place) const {
    const int thread = static_cast<int>(cuda::threadIdx.x) % 128;
    for (int i = 0; i < kCount; ++i) {
      const layout::PromptSum at = layout::prompt_sum(thread, i);
      const int token = place.token + (i / 2 % 2) * 8;
      const int in_block = at.place % layout::kSpreadRows;
      int row = at.place - in_block + (kSpread ? layout::spread_row(in_block) : in_block);
      const float scale = Format::kHasScales ? place.scales[row] : 1.0F;
      int part = place.tile.part;
      if (args.paired && row >= args.rows_of_tile) part = 1, row -= args.rows_of_tile;
      row += place.tile.row;
      if (token >= args.num_tokens || row >= args.part_rows[part]) continue;
      float& to = out[token * stride + args.part_begin[part] + row];
      if (to != kUntouched) emulator::fail("a result is written twice");
      to = sums[i] * scale;
    }
  }
};

struct Problem {
  std::int64_t tokens = 0;
  std::vector<int> parts;
  int cols = 0;
  bool paired = false;
};

// Operands of one format, small integers, and what comes out.
template <class Format>
class EmulatedProduct {
 public:
  explicit EmulatedProduct(const Problem& problem) : problem_(problem) {
    product_.tokens = problem.tokens;
    for (const int rows : problem.parts) {
      product_.parts[product_.num_parts++] = {nullptr, static_cast<int>(rows_), rows};
      rows_ += rows;
    }
    product_.cols = problem.cols;
    product_.code_bytes = Format::kBytes;
    product_.paired = problem.paired;
    x_ = integer_values(problem.tokens * problem.cols, 1, 4);
    w_ = integer_values(rows_ * problem.cols, 2, 8);
    x_codes_ = codes(x_);
    w_codes_ = codes(w_);
    for (std::int64_t n = 0; n < rows_; ++n) scales_.push_back(n % 3 == 0 ? 0.5F : -2.0F);
    product_.row_scales = scales_.data();
  }

  template <int kTileRows, bool kSpread>
  void expect_exact(int cluster, std::uint32_t seed, int lag = 0) const {
    cuda::PromptGemmPlan plan =
        cuda::make_prompt_plan(product_, kTileRows, cluster, kSpread, kMachine);
    ASSERT_EQ(plan.tile_rows, kTileRows);
    ASSERT_EQ(plan.args.spread, kSpread);
    if (lag > 0) plan.args.lag = lag;
    plan.args.scale_factor = 2;
    const cuda::PromptMaps maps = this->maps(plan);
    const std::int64_t stride = rows_ + 3;
    std::vector<float> out(static_cast<std::size_t>(problem_.tokens * stride), kUntouched);
    emulator::Launch launch;
    launch.num_blocks = plan.num_blocks;
    launch.cluster = cluster;
    launch.threads = cuda::kPromptThreads;
    launch.shared_bytes = cuda::prompt_shared_bytes(kTileRows);
    launch.first_phase_twice = true;  // the second warpgroup, before it begins
    launch.seed = seed;
    const StoreEpilogue epilogue{out.data(), stride};
    ASSERT_EQ(emulator::run(launch,
                            [&](std::uint8_t* shared) {
                              cuda::PromptGemm<Format, kTileRows, kSpread, StoreEpilogue>(
                                  maps, plan.args, shared)
                                  .run(epilogue);
                            }),
              "")
        << "seed " << seed << ", cluster of " << cluster;
    for (std::int64_t m = 0; m < problem_.tokens; ++m) {
      for (std::int64_t n = 0; n < stride; ++n) {
        const float expected = n < rows_ ? result(m, n) : kUntouched;
        ASSERT_EQ(out[static_cast<std::size_t>(m * stride + n)], expected)
            << "token " << m << ", row " << n << ", seed " << seed << ", cluster of " << cluster;
      }
    }
  }

 private:
  [[nodiscard]] static std::vector<std::uint8_t> codes(const std::vector<float>& values) {
    std::vector<std::uint8_t> bytes;
    for (const float v : values) {
      if (Format::kBytes == 1) {
        bytes.push_back(f32_to_e4m3(v));
      } else {
        bytes.push_back(static_cast<std::uint8_t>(f32_to_bf16(v)));
        bytes.push_back(static_cast<std::uint8_t>(f32_to_bf16(v) >> 8));
      }
    }
    return bytes;
  }
  [[nodiscard]] float result(std::int64_t m, std::int64_t n) const {
    float sum = 0;
    for (int k = 0; k < problem_.cols; ++k) {
      sum += x_[static_cast<std::size_t>(m * problem_.cols + k)] *
             w_[static_cast<std::size_t>(n * problem_.cols + k)];
    }
    return Format::kHasScales ? sum * scales_[static_cast<std::size_t>(n)] * 2 : sum;
  }
  // As prompt_maps() has them.
  [[nodiscard]] cuda::PromptMaps maps(const cuda::PromptGemmPlan& plan) const {
    const std::int64_t row_bytes = std::int64_t{problem_.cols} * Format::kBytes;
    emulator::Tensor map;
    map.element_bytes = Format::kBytes;
    map.data = x_codes_.data();
    map.sizes = {problem_.cols, problem_.tokens, 1};
    map.strides = {row_bytes, 0};
    const int box_cols = layout::kPromptRowBytes / Format::kBytes;
    map.box = {box_cols, layout::kPromptTileTokens, 1};
    cuda::PromptMaps maps;
    maps.x = map;
    map.spread = plan.args.spread;
    map.box[1] = plan.tile_rows / 2;
    for (int i = 0; i < product_.num_parts; ++i) {
      map.data = w_codes_.data() + product_.parts[i].begin * row_bytes;
      map.sizes[1] = product_.parts[i].rows;
      maps.weights[i] = map;
    }
    return maps;
  }

  Problem problem_;
  cuda::PromptProduct product_;
  std::int64_t rows_ = 0;
  std::vector<float> x_, w_, scales_;
  std::vector<std::uint8_t> x_codes_, w_codes_;
};

TEST(PromptGemmEmulated, IsExactInEveryInstanceAndOrderOfTurns) {
  const EmulatedProduct<cuda::PromptE4m3> product({270, {160, 32}, 1184});
  for (std::uint32_t seed = 0; seed < 2; ++seed) {
    for (const int cluster : {1, 2}) {
      product.expect_exact<256, true>(cluster, seed);
      product.expect_exact<128, true>(cluster, seed);
    }
  }
}

TEST(PromptGemmEmulated, TakesRowsAsTheyCome) {
  const EmulatedProduct<cuda::PromptE4m3> product({130, {33, 7, 130}, 400});
  for (const int cluster : {1, 2}) product.expect_exact<128, false>(cluster, 5);
}

TEST(PromptGemmEmulated, PutsGateAndUpSideBySide) {
  const EmulatedProduct<cuda::PromptE4m3> product({140, {160, 160}, 272, true});
  for (const int cluster : {1, 2}) {
    product.expect_exact<256, true>(cluster, 6);
    product.expect_exact<128, true>(cluster, 7);
  }
}

TEST(PromptGemmEmulated, TakesBf16AndOneStageOfK) {
  const EmulatedProduct<cuda::PromptBf16> one({65, {96}, 64});
  const EmulatedProduct<cuda::PromptBf16> more({129, {288}, 456});
  for (const int cluster : {1, 2}) {
    one.expect_exact<256, true>(cluster, 1);
    one.expect_exact<128, true>(cluster, 2);
    more.expect_exact<256, true>(cluster, 3);
    more.expect_exact<128, true>(cluster, 4);
  }
}

TEST(PromptGemmEmulated, TheFirstWarpgroupMayBeAheadByAnyNumberOfStages) {
  const EmulatedProduct<cuda::PromptE4m3> product({257, {128}, 912});
  for (int lag = 1; lag <= cuda::prompt_stages(256); ++lag) {
    product.expect_exact<256, true>(2, static_cast<std::uint32_t>(lag), lag);
  }
}

}  // namespace
}  // namespace fut::test
