// Perplexity as the engine measures it: both paths agree, a model agrees with itself, a different
// one does not, and what cannot be measured is refused.
#include <cmath>
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/heldout.h"
#include "tests/support/model_runner.h"
#include "tests/support/test_data.h"

namespace fut::test {
namespace {

std::filesystem::path demo() {
  return source_path("configs/demo-6m");
}

TEST(Perplexity, IsThatOfTheLogits) {
  const TokenWindows windows = heldout_windows(source_path("tests/golden/demo-6m"), 2, 96);
  ModelRunner runner(demo());
  const PerplexityResult result = runner.score(windows, StepKind::Prefill);
  // The other way sums in another order: each token's value is a float64 sum of 4096 exponentials.
  EXPECT_NEAR(result.perplexity, runner.perplexity(windows), 1e-12 * result.perplexity);
  EXPECT_EQ(result.windows, 2);
  EXPECT_EQ(result.tokens, 2 * 95);
  EXPECT_EQ(std::ssize(result.token_nll), result.tokens);
  EXPECT_FALSE(result.against);
  EXPECT_GT(result.perplexity_error, 0);
}

TEST(Perplexity, BothPathsOfFloat32GiveTheSameBits) {
  const TokenWindows windows = heldout_windows(source_path("tests/golden/demo-6m"), 3, 80);
  const ModelRunner runner(demo());
  EXPECT_EQ(runner.score(windows, StepKind::Prefill).token_nll,
            runner.score(windows, StepKind::Decode).token_nll);
}

TEST(Perplexity, AModelAgreesWithItself) {
  const TokenWindows windows = heldout_windows(source_path("tests/golden/demo-6m"), 1, 64);
  const ModelRunner runner(demo());
  const PerplexityResult result = runner.score(windows, StepKind::Prefill, &runner);
  ASSERT_TRUE(result.against);
  EXPECT_EQ(result.against->perplexity, result.perplexity);
  EXPECT_EQ(result.against->difference, 0);
  EXPECT_EQ(result.against->difference_error, 0);
  EXPECT_EQ(result.against->kl, 0);
  EXPECT_EQ(result.against->top1, 1);
}

TEST(Perplexity, RoundingToBf16ShowsAsASmallDivergence) {
  const TokenWindows windows = heldout_windows(source_path("tests/golden/demo-6m"), 2, 256);
  const ModelRunner f32(demo());
  const ModelRunner bf16(demo(), {.precision = Precision::Bf16});
  for (const StepKind path : {StepKind::Prefill, StepKind::Decode}) {
    const PerplexityResult result = bf16.score(windows, path, &f32);
    ASSERT_TRUE(result.against);
    EXPECT_GT(result.against->kl, 0);
    // Means of n float64 numbers of at most 30 nats, each sum off by n roundings of its size; and the
    // way to a perplexity and back by a few more.
    const double bound = 3 * static_cast<double>(result.tokens) * 30 * 0x1p-53;
    EXPECT_NEAR(result.against->difference,
                std::log(result.perplexity / result.against->perplexity), bound);
  }
}

TEST(Perplexity, WindowsAreCutFromTheFrontAndTheRestIsDropped) {
  std::vector<std::int32_t> ids(25);
  for (int i = 0; i < 25; ++i) ids[static_cast<std::size_t>(i)] = i;
  const TokenWindows windows = cut_windows(ids, 10, 0);
  ASSERT_EQ(windows.size(), 2U);
  EXPECT_EQ(windows[1].front(), 10);
  EXPECT_EQ(windows[1].back(), 19);
  EXPECT_EQ(cut_windows(ids, 10, 1).size(), 1U);
  expect_mentions(error_message(ErrorKind::Data, [&] { (void)cut_windows(ids, 26, 0); }),
                  {"25 tokens", "26"});
}

}  // namespace
}  // namespace fut::test
