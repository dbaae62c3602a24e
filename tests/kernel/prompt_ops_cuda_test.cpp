// linear_residual and gate_up_swiglu on a prompt's tokens, that is with a residual or x in BF16, on the
// GPU: the bits of the CPU where all sums are exact, within the derived bound where BF16 products are not,
// the same bits at every number of tokens, and nothing written beside the outputs. qkv_rope_append:
// row_qkv_cuda_test.
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/support/row_cases.h"

namespace fut::test {
namespace {

#if FUT_CUDA

// Around the borders of tiles of 128 tokens and of 32, 128 and 256 rows.
constexpr std::int64_t kPromptTokens = 300;
constexpr std::int64_t kPromptCounts[] = {1, 63, 64, 65, 127, 128, 129, 257, 300};

TEST(PromptLinearResidualCuda, GivesTheBitsOfTheCpuWhereSumsAreExact) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  for (const Shape& shape : {Shape{1, 16}, Shape{33, 144}, Shape{128, 256}, Shape{288, 384},
                             Shape{1000, 512}, Shape{2080, 128}}) {
    for (const Kind kind : kKinds) {
      expect_exact_residual(*gpu, kind, shape, DType::BF16, kPromptTokens, kPromptCounts);
    }
  }
}

TEST(PromptGateUpSwigluCuda, GivesTheBitsOfTheCpuWhereItIsExactAndCountsWhatItClips) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  for (const Shape& shape :
       {Shape{8, 16}, Shape{32, 128}, Shape{33, 384}, Shape{160, 256}, Shape{800, 128}}) {
    for (const Kind kind : kKinds) {
      expect_exact_swiglu(*gpu, kind, shape, kPromptTokens, kPromptCounts,
                          [](std::int64_t) { return DType::BF16; });
    }
  }
}

TEST(PromptGateUpSwigluCuda, StaysWithinTheBoundAndGivesTheSameBitsForEveryNumberOfTokens) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  const Shape shape = {96, 384};
  SwigluCase c{.kind = Kind::Bf16, .shape = shape, .x_type = DType::BF16};
  c.eps = 0;
  c.x = unit_rms_integers(kPromptTokens, shape.cols, 9);
  const Matrix weight(*gpu, c.kind, {2 * shape.rows, shape.cols}, false, 4);
  const std::vector<float> all = c.run(*gpu, weight.view(), kPromptTokens, 0);
  std::vector<Bounded> expected;
  for (std::int64_t m = 0; m < 2; ++m) {
    const std::vector<float> operand =
        normed_operand(DType::BF16, row_of(c.x, m, shape.cols), c.eps, 1.0F);
    for (std::int64_t n = 0; n < shape.rows; ++n) {
      expected.push_back(
          rounded_to(DType::BF16, silu_product(weight.product(n, operand, 1.0F),
                                               weight.product(shape.rows + n, operand, 1.0F))));
    }
  }
  EXPECT_TRUE(within_bounds(expected, first_rows(all, 2, shape.rows), {2, shape.rows}));
  for (const std::int64_t tokens : kPromptCounts) {
    EXPECT_TRUE(same_bits(first_rows(all, tokens, shape.rows),
                          c.run(*gpu, weight.view(), tokens, 0), {tokens, shape.rows}))
        << tokens;
  }
}

#else

TEST(PromptLinearResidualCuda, GivesTheBitsOfTheCpuWhereSumsAreExact) {
  FUT_REQUIRE_GPU_DEVICE();
}

#endif

}  // namespace
}  // namespace fut::test
