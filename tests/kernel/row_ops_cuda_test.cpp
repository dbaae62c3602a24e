// linear_residual, gate_up_swiglu and lm_head with weights that lie row after row, on the GPU: the bits
// of the CPU where all sums are exact, within the derived bound where they are not, the same bits at
// every number of tokens, and nothing written beside the outputs. qkv_rope_append: row_qkv_cuda_test.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "kernels/numeric/activation_scales.h"
#include "kernels/numeric/e4m3.h"
#include "tests/support/row_cases.h"

#if FUT_CUDA
#include "kernels/cuda/row_gemm_plan.h"
#endif

namespace fut::test {
namespace {

#if FUT_CUDA

constexpr std::int64_t kTokens = 33;
constexpr std::int64_t kCounts[] = {1, 2, 3, 7, 8, 9, 16, 17, 31, 32, 33};

// Rows that fill no strip, few columns, columns that fill no chunk, more strips than blocks, and the
// widths of 8B and 70B.
constexpr Shape kShapes[] = {{1, 16},      {40, 128},    {40, 256},  {33, 384},
                             {17, 96},     {500, 144},   {16, 2064}, {9000, 64},
                             {4096, 4096}, {200, 14336}, {64, 28672}};

// ---- the plan ------------------------------------------------------------------------------------

TEST(RowGemmPlan, FitsABlockWithoutOverlapOrGoesInParts) {
  const cuda::Int4GemmMachine machine{132, 66, 30, 15};
  for (const Shape& shape : kShapes) {
    for (const int code_bytes : {1, 2}) {
      cuda::RowMatrix matrix;
      matrix.rows = static_cast<int>(shape.rows);
      matrix.cols = static_cast<int>(shape.cols);
      matrix.code_bytes = code_bytes;
      const auto order = layout::RowOrder::natural(matrix.rows);
      for (int tokens = 1; tokens <= cuda::kMaxRowTokens; ++tokens) {
        const auto plan = cuda::plan_row_gemm(matrix, order, tokens, machine);
        ASSERT_TRUE(plan || tokens > 8) << "so few tokens go at once";
        if (!plan) continue;
        const cuda::RowGemmLayout& l = plan->args.layout;
        EXPECT_LE(l.bytes, cuda::kMaxSharedBytes);
        EXPECT_GE(8 * plan->tiles, tokens);
        EXPECT_TRUE(l.squares < l.ring && l.ring < l.tokens && l.tokens < l.partial &&
                    l.partial < l.incoming && l.incoming <= l.bytes);
        EXPECT_EQ(l.token_stride % 16, 0);
        EXPECT_EQ(plan->num_blocks % plan->args.cluster, 0);
        EXPECT_EQ(plan->args.segments * plan->args.cluster, layout::kNumKSegments);
      }
    }
  }
}

// Of 8B: how many blocks share K; 0 where the tokens go in parts.
TEST(RowGemmPlan, SharesColumnsAmongAsFewBlocksAsHoldTheTokens) {
  const cuda::Int4GemmMachine machine{132, 66, 30, 15};
  const auto cluster = [&](int cols, int tokens) {
    cuda::RowMatrix matrix;
    matrix.rows = 4096;
    matrix.cols = cols;
    matrix.code_bytes = 1;
    const auto plan = cuda::plan_row_gemm(matrix, layout::RowOrder::natural(4096), tokens, machine);
    return plan ? plan->args.cluster : 0;
  };
  EXPECT_EQ(cluster(4096, 1), 1);
  EXPECT_EQ(cluster(4096, 8), 1);
  EXPECT_EQ(cluster(4096, 16), 1);
  EXPECT_EQ(cluster(4096, 32), 4);
  EXPECT_EQ(cluster(14336, 1), 1);
  EXPECT_EQ(cluster(14336, 8), 2);
  EXPECT_EQ(cluster(14336, 16), 4);
  EXPECT_EQ(cluster(14336, 32), 0);
}

TEST(RowGemmPlan, RefusesRowsThatCannotBeReadInSixteens) {
  const auto bytes = std::make_unique<float[]>(64);
  EXPECT_THROW((void)cuda::row_matrix("op", Weights(DenseMatrix{DType::BF16, bytes.get(), 2, 12})),
               Error);
  EXPECT_THROW((void)cuda::row_matrix("op", Weights(DenseMatrix{DType::F16, bytes.get(), 2, 16})),
               Error);
}

// ---- linear_residual -----------------------------------------------------------------------------

TEST(RowLinearResidualCuda, GivesTheBitsOfTheCpuWhereSumsAreExact) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  for (const Shape& shape : kShapes) {
    for (const Kind kind : kKinds) {
      for (const DType type : {DType::F32, DType::BF16}) {
        if (shape.rows == 4096 && type == DType::BF16) continue;
        expect_exact_residual(*gpu, kind, shape, type, kTokens, kCounts);
      }
    }
  }
}

// Some shapes are so tall that a cluster has several rounds of several strips each.
TEST(RowLinearResidualCuda, GivesTheSameBitsAtEveryNumberOfTokensWithinTheBound) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  for (const Shape& shape :
       {Shape{33, 384}, Shape{500, 144}, Shape{2500, 4096}, Shape{2500, 14336}}) {
    for (const Kind kind : kKinds) {
      const ResidualCase c(kind, shape, false, DType::F32, kTokens);
      const Matrix weight(*gpu, kind, shape, false, 3);
      const std::vector<float> all = c.run(*gpu, weight, kTokens, 0);
      std::vector<Bounded> expected;
      for (std::int64_t m = 0; m < 2; ++m) {
        for (std::int64_t n = 0; n < shape.rows; ++n) {
          const Bounded r(row_of(c.residual, m, shape.rows)[static_cast<std::size_t>(n)]);
          expected.push_back(r + weight.product(n, row_of(c.x, m, shape.cols), c.x_scale));
        }
      }
      EXPECT_TRUE(within_bounds(expected, first_rows(all, 2, shape.rows), {2, shape.rows}))
          << name_of(name_of(kind), shape, 2);
      for (std::int64_t tokens = 1; tokens <= kTokens; ++tokens) {
        EXPECT_TRUE(same_bits(first_rows(all, tokens, shape.rows), c.run(*gpu, weight, tokens, 0),
                              {tokens, shape.rows}))
            << name_of(name_of(kind), shape, tokens);
      }
    }
  }
}

// ---- gate_up_swiglu ------------------------------------------------------------------------------

TEST(RowGateUpSwigluCuda, GivesTheBitsOfTheCpuWhereItIsExactAndCountsWhatItClips) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  // The last one has more strips than all blocks hold at a time.
  for (const Shape& shape : {Shape{8, 16}, Shape{20, 128}, Shape{33, 384}, Shape{768, 256},
                             Shape{100, 4096}, Shape{3000, 160}, Shape{18001, 64}}) {
    for (const Kind kind : kKinds) {
      expect_exact_swiglu(*gpu, kind, shape, kTokens, kCounts, [](std::int64_t tokens) {
        return tokens % 3 == 0 ? DType::BF16 : DType::F32;
      });
    }
  }
}

TEST(RowGateUpSwigluCuda, GivesTheSameBitsAtEveryNumberOfTokensWithinTheBound) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  for (const Shape& shape : {Shape{33, 384}, Shape{300, 4096}}) {
    for (const Kind kind : kKinds) {
      SwigluCase c{.kind = kind, .shape = shape};
      c.eps = 0;
      c.x = unit_rms_integers(kTokens, shape.cols, 9);  // the norm is exact, so operands are known
      const Matrix weight(*gpu, kind, {2 * shape.rows, shape.cols}, false, 4);
      const std::vector<float> all = c.run(*gpu, weight.view(), kTokens, 0);
      std::vector<Bounded> expected;
      for (std::int64_t m = 0; m < 2; ++m) {
        const std::vector<float> operand = normed_operand(
            operand_type(kind), row_of(c.x, m, shape.cols), c.eps, c.operand_scale());
        for (std::int64_t n = 0; n < shape.rows; ++n) {
          const Bounded h =
              silu_product(weight.product(n, operand, c.operand_scale()),
                           weight.product(shape.rows + n, operand, c.operand_scale()));
          expected.push_back(
              rounded_to(operand_type(kind), h * Bounded(kind == Kind::E4m3 ? c.out_scale : 1.0F)));
        }
      }
      // Beyond the largest E4M3 there is no bound.
      std::vector<float> actual = first_rows(all, 2, shape.rows);
      for (std::size_t i = 0; i < actual.size(); ++i) {
        if (kind == Kind::E4m3 && std::fabs(expected[i].value) > 400) {
          expected[i] = Bounded(actual[i] = 0);
        }
      }
      EXPECT_TRUE(within_bounds(expected, actual, {2, shape.rows}))
          << name_of(name_of(kind), shape, 2);
      c.eps = 1e-5F;
      c.x = normal_values(kTokens * shape.cols, 1, 3.0F);
      const std::vector<float> normal = c.run(*gpu, weight.view(), kTokens, 0);
      for (std::int64_t tokens = 1; tokens <= kTokens; ++tokens) {
        EXPECT_TRUE(same_bits(first_rows(normal, tokens, shape.rows),
                              c.run(*gpu, weight.view(), tokens, 0), {tokens, shape.rows}))
            << name_of(name_of(kind), shape, tokens);
      }
    }
  }
}

// ---- lm_head -------------------------------------------------------------------------------------

struct HeadCase {
  Shape shape;  // vocabulary, columns
  float eps = 0;
  std::vector<float> x = {};  // of kTokens + 3 rows, the last of which come first

  [[nodiscard]] std::vector<std::int32_t> rows(std::int64_t count) const {
    std::vector<std::int32_t> result;
    for (std::int64_t i = 0; i < count; ++i)
      result.push_back(static_cast<std::int32_t>(i + i / 12));
    return result;
  }
  [[nodiscard]] std::vector<float> run(Backend& backend, const Weights& weight,
                                       const DenseMatrix& rescoring, std::int64_t count, int gap,
                                       DType x_type = DType::F32) const {
    const Input input(backend, x_type, x, {kTokens + 3, shape.cols}, gap);
    const Guarded<std::int32_t> chosen(backend, rows(count));
    const GuardedMatrix out(backend, {count, shape.rows});
    backend.lm_head(
        {input.view(), chosen.data(), count, nullptr, eps, weight, rescoring, out.view()});
    return out.values();
  }
};

TEST(RowLmHeadCuda, GivesTheBitsOfTheCpuWhereSumsAreExact) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  for (const Shape& shape :
       {Shape{1, 16}, Shape{50, 48}, Shape{64, 128}, Shape{65, 256}, Shape{1100, 384},
        Shape{4096, 256}, Shape{128256, 32}, Shape{3000, 4096}}) {
    HeadCase c{.shape = shape};
    c.x = unit_rms_integers(kTokens + 3, shape.cols, 9);
    const std::vector<float> numbers = integer_values(shape.rows * shape.cols, 6, 8);
    const auto run = [&](Backend& backend, int which, std::int64_t count, int gap) {
      const GuardedWeight wide(backend, DType::BF16, shape, numbers);
      const GuardedInt8 codes(backend, shape, Scales::PowersOfTwo, 7);
      const Weights weight = which == 0 ? Weights(wide.view()) : Weights(codes.view());
      return c.run(backend, weight, which == 2 ? wide.view() : DenseMatrix{}, count, gap,
                   count % 2 == 0 ? DType::BF16 : DType::F32);
    };
    const char* const names[] = {"BF16", "INT8", "INT8 with rescoring"};
    for (int which = 0; which < 3; ++which) {
      const std::vector<float> expected = run(*cpu(), which, kTokens, 0);
      for (const std::int64_t count : {1, 2, 8, 9, 16, 17, 32, 33}) {
        EXPECT_TRUE(same_bits(first_rows(expected, count, shape.rows),
                              run(*gpu, which, count, count == 2 ? 3 : 0), {count, shape.rows}))
            << name_of(names[which], shape, count);
      }
    }
  }
}

TEST(RowLmHeadCuda, StaysWithinTheBoundAndGivesTheSameBitsForEveryNumberOfRows) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  for (const Shape& shape :
       {Shape{37, 48}, Shape{400, 4096}, Shape{95, 128}, Shape{250, 256}, Shape{129, 1168}}) {
    HeadCase c{.shape = shape, .eps = 1e-5F};
    c.x = normal_values((kTokens + 3) * shape.cols, 1, 3.0F);
    c.x[2] = 1e6F;  // saturates
    const GuardedInt8 weight(*gpu, shape, Scales::Any, 7);
    const std::vector<float> all = c.run(*gpu, weight.view(), {}, kTokens, 0);
    std::vector<Bounded> expected;
    const std::vector<std::int32_t> rows = c.rows(kTokens);
    for (const std::int32_t row : rows) {
      const std::span<const float> x = row_of(c.x, row, shape.cols);
      const std::vector<float> operand = rounded_row(DType::F16, x);
      for (std::int64_t n = 0; n < shape.rows; ++n) {
        expected.push_back(weight.bounded_product(n, operand, bounded_inverse_rms(x, c.eps)));
      }
    }
    EXPECT_TRUE(within_bounds(expected, all, {kTokens, shape.rows}));
    for (std::int64_t count = 1; count <= kTokens; ++count) {
      EXPECT_TRUE(same_bits(first_rows(all, count, shape.rows),
                            c.run(*gpu, weight.view(), {}, count, 0), {count, shape.rows}))
          << name_of("INT8", shape, count);
    }
  }
}

// More strips than all blocks hold at a time.
TEST(RowLmHeadCuda, GivesTheSameBitsForEveryNumberOfRowsOverATallMatrix) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  for (const Shape& shape : {Shape{40001, 384}, Shape{70000, 1024}}) {
    HeadCase c{.shape = shape, .eps = 1e-5F};
    c.x = normal_values((kTokens + 3) * shape.cols, 1, 3.0F);
    const GuardedInt8 weight(*gpu, shape, Scales::Any, 7);
    const std::vector<float> all = c.run(*gpu, weight.view(), {}, 32, 0);
    for (const std::int64_t count : {1, 8, 9, 15, 16, 17, 24, 31, 32}) {
      EXPECT_TRUE(same_bits(first_rows(all, count, shape.rows),
                            c.run(*gpu, weight.view(), {}, count, 0), {count, shape.rows}))
          << name_of("INT8", shape, count);
    }
  }
}

TEST(RowLmHeadCuda, RescoresTheLowerIdsOfEqualLogitsAndKeepsANanInItsRow) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  const Shape shape = {5000, 16};
  HeadCase c{.shape = shape, .eps = 1e-5F};
  c.x = normal_values((kTokens + 3) * shape.cols, 1);
  c.x[static_cast<std::size_t>(shape.cols) + 3] = kPoison;  // row 1
  // Three different rows, again and again: ties everywhere.
  std::vector<std::int8_t> codes;
  for (std::int64_t i = 0; i < shape.rows * shape.cols; ++i) {
    codes.push_back(static_cast<std::int8_t>(i / shape.cols * 7 % 3 - 1));
  }
  const Guarded<std::int8_t> array(*gpu, codes);
  const Guarded<float> scales(*gpu, std::vector<float>(5000, 1.0F));
  const Int8Matrix ties = {array.data(), scales.data(), shape.rows, shape.cols};
  const GuardedWeight zeros(*gpu, DType::BF16, shape,
                            std::vector<float>(static_cast<std::size_t>(5000 * 16)));
  const std::vector<float> plain = c.run(*gpu, ties, {}, 3, 0);
  const std::vector<float> out = c.run(*gpu, ties, zeros.view(), 3, 0);
  for (std::int64_t i = 0; i < 3; ++i) {
    const std::span<const float> logits = row_of(plain, i, shape.rows);
    const float best = i == 1 ? 0 : *std::max_element(logits.begin(), logits.end());
    int num_rescored = 0;
    for (std::size_t id = 0; id < 5000; ++id) {
      const float v = row_of(out, i, shape.rows)[id];
      if (i == 1) {
        EXPECT_TRUE(std::isnan(v)) << id;
      } else if (logits[id] == best && num_rescored < kRescoredLogits) {
        EXPECT_EQ(v, 0) << id;
        ++num_rescored;
      } else {
        EXPECT_EQ(v, logits[id]) << id;
      }
    }
  }
}

#else

TEST(RowOpsCuda, GiveTheBitsOfTheCpuWhereSumsAreExact) {
  FUT_REQUIRE_GPU_DEVICE();
}

#endif

}  // namespace
}  // namespace fut::test
