// Prefill on the GPU, end to end: on the larger self-trained model, whose keys and up_proj hold outliers, it
// leans to no side of the CPU reference; the same with weights that are expanded from INT4 codes. How far it is
// from it beside the noise of another order of sums is told; 1.5 times that is the aim, and not reached: sums
// of the tensor cores keep fewer bits. What expanded weights cost in quality is told on the CPU.
#include <gtest/gtest.h>

#include "tests/support/backends.h"
#include "tests/support/heldout.h"
#include "tests/support/model_runner.h"
#include "tests/support/quantized_folder.h"
#include "tests/support/reordered_model.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace fut::test {
namespace {

constexpr int kWindows = 6, kTokens = 512;

using Rows = std::vector<LogitRowsOf>;

#ifdef FUT_SANITIZED
constexpr bool kTooSlow = true;
#else
constexpr bool kTooSlow = false;
#endif

class Prefill : public testing::Test {
 protected:
  void SetUp() override {
    FUT_REQUIRE_TEST_DATA(novels());
    if (kTooSlow) GTEST_SKIP() << "scores thousands of tokens: too slow under sanitizers";
    text_ = heldout_windows(novels(), kWindows, kTokens);
    quantize_for_test(novels(), folder_ / "packed", {});
  }
  [[nodiscard]] static std::filesystem::path novels() { return test_data("models/novels-19m"); }

  [[nodiscard]] Rows rows(const RunnerOptions& options, const char* folder = "packed") const {
    return ModelRunner(folder_ / folder, options).window_logits(text_, StepKind::Prefill);
  }
  [[nodiscard]] RowComparison compare(const Rows& expected, const Rows& actual) const {
    return compare_windows(expected, actual, text_);
  }
  // What the order of sums alone makes of the CPU's rows.
  [[nodiscard]] double floor(const RunnerOptions& options, const Rows& expected) const {
    if (!std::filesystem::exists(folder_ / "reordered")) {
      if (!std::filesystem::exists(folder_ / "reordered_source")) {
        write_reordered_model(novels(), folder_ / "reordered_source");
      }
      quantize_for_test(folder_ / "reordered_source", folder_ / "reordered", {});
    }
    return compare(expected, rows(options, "reordered")).kl;
  }

  TokenWindows text_;
  TempFolder folder_;
};

TEST_F(Prefill, WeightsThatAreExpandedCostLittleQuality) {
  const Rows truth = ModelRunner(novels()).window_logits(text_, StepKind::Prefill);
  const auto tell = [&](const char* what, const Rows& actual) {
    const RowComparison c = compare(truth, actual);
    std::printf("%-32s KL to float32 %.4f, difference %+.4f +- %.4f, top-1 %.4f\n", what, c.kl,
                c.difference, c.difference_error, c.top1);
    return c.kl;
  };
  RunnerOptions options{.precision = Precision::Int4, .kv_cache = cache_of(KvCacheDtype::Bf16)};
  const double fp8 = tell("prefill from FP8", rows(options));
  options.prefill = PrefillWeights::Int4;
  const double expanded = tell("prefill from INT4, expanded", rows(options));
  const double int4 =
      tell("INT4 itself, by decode",
           ModelRunner(folder_ / "packed", options).window_logits(text_, StepKind::Decode));
  // No better than INT4 weights, and the rounding to E4M3 adds no more to them than to the model's own.
  EXPECT_LT(fp8, expanded);
  EXPECT_LT(expanded, int4 + 2 * fp8);
}

// What the floor is measured by: nothing but the order of sums is another one.
TEST_F(Prefill, ChannelsInAnotherOrderAreTheSameFunction) {
  write_reordered_model(novels(), folder_ / "reordered_source");
  const auto of = [&](const std::filesystem::path& folder) {
    return ModelRunner(folder).window_logits(text_, StepKind::Prefill);
  };
  const RowComparison plain = compare(of(novels()), of(folder_ / "reordered_source"));
  EXPECT_GT(plain.kl, 0);
  EXPECT_LT(plain.kl, 1e-8);
  EXPECT_EQ(plain.top1, 1);
  const RunnerOptions fp8{.precision = Precision::Fp8};
  const double noise = floor(fp8, rows(fp8));
  std::printf("FP8: KL of another order of sums %.3g\n", noise);
  EXPECT_LT(noise, 1e-3);
}

TEST_F(Prefill, OnTheGpuLeansToNoSideOfTheReference) {
  FUT_REQUIRE_GPU_DEVICE();
  const struct {
    const char* name;
    Precision precision;
    KvCacheDtype cache;
    PrefillWeights prefill;
  } cases[] = {{"fp8", Precision::Fp8, KvCacheDtype::Bf16, PrefillWeights::Fp8},
               {"fp8, INT4 cache", Precision::Fp8, KvCacheDtype::Int4, PrefillWeights::Fp8},
               {"int4", Precision::Int4, KvCacheDtype::Int4, PrefillWeights::Fp8},
               {"int4, expanded", Precision::Int4, KvCacheDtype::Int4, PrefillWeights::Int4}};
  const Rows truth = ModelRunner(novels()).window_logits(text_, StepKind::Prefill);
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    RunnerOptions options{
        .precision = c.precision, .kv_cache = cache_of(c.cache), .prefill = c.prefill};
    if (c.cache == KvCacheDtype::Int4) options.prefill_chunk = 128;  // so that codes are read
    const Rows expected = rows(options);
    const double noise = floor(options, expected);
    options.gpu = true;
    const RowComparison seen = compare(expected, rows(options));
    std::printf(
        "%-18s KL %.3g (of another order of sums %.3g), difference %.2g +- %.2g, top-1 %.4f\n",
        c.name, seen.kl, noise, seen.difference, seen.difference_error, seen.top1);
    EXPECT_LE(std::abs(seen.difference), 3 * seen.difference_error);
  }
}

}  // namespace
}  // namespace fut::test
