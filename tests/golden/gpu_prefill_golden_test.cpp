// Prefill on the GPU, end to end: on the larger self-trained model, whose keys and up_proj hold outliers, it
// leans to no side of the CPU reference and is no farther from it than one order of the tensor cores' sums
// from another; the same with weights that are expanded from INT4 codes. What expanded weights cost in quality
// is told on the CPU, and that the tensor cores' sums alone explain the distance.
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
  // What the order of sums alone makes of these rows. In float32 that is chance: five of six sums of E4M3
  // products are exact in any order, and the last bit of the others and of norms seldom crosses a border of
  // rounding. Where one is crossed, all rows behind it in the window are others, and as far away as rows
  // get; a window without a crossing keeps its bits, and a run may have none: over an INT4 cache, in passes
  // of 128 tokens, it has none. Sums that keep fewer bits cross borders in every row: with tensor_core_sums
  // this is the noise between two runs on the GPU that differ by the order of sums alone.
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

// The reference in all but the sums of E4M3 products, which are the tensor cores': no farther from it, and
// leaning no more to a side, than what is asked of the GPU.
TEST_F(Prefill, SumsOfTensorCoresAreAsFarFromTheReferenceAsFromEachOther) {
  text_.resize(2);  // sums are slow here, and every row counts: no crossing has to be waited for
  for (auto& window : text_) window.resize(kTokens / 2);
  for (const KvCacheDtype cache : {KvCacheDtype::Bf16, KvCacheDtype::Int4}) {
    RunnerOptions options{.precision = Precision::Fp8, .kv_cache = cache_of(cache)};
    if (cache == KvCacheDtype::Int4) options.prefill_chunk = 64;  // so that codes are read
    SCOPED_TRACE(kv_cache_dtype_name(cache));
    const Rows expected = rows(options);
    const double chance = floor(options, expected);
    options.tensor_core_sums = true;
    const Rows sums = rows(options);
    const double noise = floor(options, sums);
    const RowComparison seen = compare(expected, sums);
    std::printf(
        "%s cache: KL of another order in float32 %.3g, of tensor cores' sums %.3g; to those %.3g, "
        "difference %.2g +- %.2g, top-1 %.4f\n",
        std::string(kv_cache_dtype_name(cache)).c_str(), chance, noise, seen.kl, seen.difference,
        seen.difference_error, seen.top1);
    EXPECT_LT(chance, noise);
    EXPECT_LE(seen.kl, 1.5 * noise);
    EXPECT_LE(std::abs(seen.difference), 3 * seen.difference_error);
  }
}

TEST_F(Prefill, OnTheGpuLeansToNoSideOfTheReferenceAndIsAsNearAsItsSumsAllow) {
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
    options.tensor_core_sums = true;
    const Rows sums = rows(options);
    const double noise = floor(options, sums);
    options.tensor_core_sums = false;
    options.gpu = true;
    const Rows actual = rows(options);
    const RowComparison seen = compare(expected, actual);
    std::printf(
        "%-18s KL %.3g (of another order of tensor cores' sums %.3g; to the reference with such "
        "sums "
        "%.3g), difference %.2g +- %.2g, top-1 %.4f\n",
        c.name, seen.kl, noise, compare(sums, actual).kl, seen.difference, seen.difference_error,
        seen.top1);
    EXPECT_LE(std::abs(seen.difference), 3 * seen.difference_error);
    EXPECT_LE(seen.kl, 1.5 * noise);
  }
}

}  // namespace
}  // namespace fut::test
