// Whether quantisation is as good as its means: each means against the same without it, on held-out
// text of the larger self-trained model, whose keys and up_proj hold outliers that leave its function
// as it was. By KL to float32 and by paired differences; perplexity alone resolves too little.
//
// Seen on 8 windows of 512 tokens, KL to float32 in nats: bf16 0.0001, fp8 0.0058, rtn 0.0426 (min-max
// scales 0.0551, groups of 64 0.0370), gptq rotated 0.0320; INT4 cache with q and k as they come, rtn:
// rotated 0.0648, not rotated 0.3242, a paired difference of +0.22 nats; INT8 head to BF16 head 8e-5.
// The noise floor (sums in another order) is 1e-5 with a BF16 cache and 7e-4 with an INT4 cache.
#include <cstdio>
#include <gtest/gtest.h>
#include <map>

#include "tests/support/heldout.h"
#include "tests/support/model_runner.h"
#include "tests/support/quantized_folder.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace fut::test {
namespace {

using Rows = std::vector<LogitRowsOf>;

std::filesystem::path novels() {
  return test_data("models/novels-19m");
}

KvCacheChoice bf16_cache() {
  KvCacheChoice choice;
  choice.has_dtype = true;
  choice.dtype = KvCacheDtype::Bf16;
  return choice;
}

KvCacheChoice int4_cache(bool rotate) {
  KvCacheChoice choice;
  choice.has_dtype = true;
  choice.dtype = KvCacheDtype::Int4;
  choice.rotate = rotate;
  return choice;
}

class QuantizedNovels : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!std::filesystem::exists(novels())) return;
    folder_ = std::make_unique<TempFolder>();
    text_ = heldout_windows(novels(), 8, 512);
    truth_ = ModelRunner(novels()).window_logits(text_, StepKind::Prefill);
  }
  static void TearDownTestSuite() {
    folder_.reset();
    truth_.clear();
  }
  void SetUp() override { FUT_REQUIRE_TEST_DATA(novels()); }

  // The folder quantised with these options; made when it is first asked for.
  static std::filesystem::path packed(const std::string& name, const PackedOptions& options) {
    const std::filesystem::path target = folder_->path() / name;
    if (!std::filesystem::exists(target)) quantize_for_test(novels(), target, options);
    return target;
  }

  static Rows decoded(const std::filesystem::path& folder, const KvCacheChoice& cache) {
    return ModelRunner(folder, {.precision = Precision::Int4, .kv_cache = cache})
        .window_logits(text_, StepKind::Decode);
  }

  static RowComparison against_truth(const char* what, const Rows& rows) {
    const RowComparison c = compare_windows(truth_, rows, text_);
    std::printf("%-40s KL %.4f, difference %+.4f +- %.4f, top-1 %.4f\n", what, c.kl, c.difference,
                c.difference_error, c.top1);
    return c;
  }

  static const TokenWindows& text() { return text_; }

 private:
  inline static std::unique_ptr<TempFolder> folder_;
  inline static TokenWindows text_;
  inline static Rows truth_;
};

TEST_F(QuantizedNovels, EachMeansIsWorthIt) {
  PackedOptions rtn;
  PackedOptions min_max;
  min_max.scale_rule = ScaleRule::MinMax;
  PackedOptions g64;
  g64.group_size = 64;
  PackedOptions gptq;
  gptq.method = QuantMethod::Gptq;
  gptq.rotate = true;
  const auto kl = [](const char* name, const PackedOptions& options) {
    return against_truth(name, decoded(packed(name, options), bf16_cache())).kl;
  };
  const double searched = kl("rtn", rtn);
  EXPECT_LE(searched, kl("rtn, min-max scales", min_max));
  EXPECT_LE(kl("rtn, groups of 64", g64), searched);
  EXPECT_LE(kl("gptq, rotated", gptq), searched);
}

TEST_F(QuantizedNovels, NarrowerTypesAreFartherFromTheTruth) {
  const auto folder = packed("rtn", {});
  const RowComparison bf16 =
      against_truth("bf16", ModelRunner(novels(), {.precision = Precision::Bf16})
                                .window_logits(text(), StepKind::Prefill));
  const RowComparison fp8 = against_truth(
      "fp8",
      ModelRunner(folder, {.precision = Precision::Fp8}).window_logits(text(), StepKind::Prefill));
  const RowComparison int4 = against_truth("int4", decoded(folder, bf16_cache()));
  EXPECT_LT(bf16.kl, fp8.kl);
  EXPECT_LT(fp8.kl, int4.kl);
}

TEST_F(QuantizedNovels, RotationIsWhatSavesAnInt4CacheOfOutliers) {
  PackedOptions unbalanced;
  unbalanced.balance_qk = false;
  const auto folder = packed("rtn, q and k as they come", unbalanced);
  const Rows rotated = decoded(folder, int4_cache(true));
  const Rows unrotated = decoded(folder, int4_cache(false));
  const RowComparison a = against_truth("INT4 cache, rotated", rotated);
  const RowComparison b = against_truth("INT4 cache, not rotated", unrotated);
  EXPECT_LT(a.kl, b.kl);
  // The paired difference of the two: how much better the rotated one predicts.
  const RowComparison paired = compare_windows(rotated, unrotated, text());
  EXPECT_GT(paired.difference, 3 * paired.difference_error);
}

TEST_F(QuantizedNovels, TheInt8HeadIsTheBf16HeadForAllPurposes) {
  const auto folder = packed("rtn", {});
  const auto with_head = [&](HeadChoice head) {
    return ModelRunner(folder,
                       {.precision = Precision::Fp8, .kv_cache = bf16_cache(), .head = head})
        .window_logits(text(), StepKind::Prefill);
  };
  const Rows bf16 = with_head(HeadChoice::Bf16);
  const RowComparison int8 = compare_windows(bf16, with_head(HeadChoice::Int8), text());
  const RowComparison rescored = compare_windows(bf16, with_head(HeadChoice::Int8Rescored), text());
  std::printf("INT8 head: KL %.2g, difference %+.2g; best 64 from BF16: KL %.2g, top-1 %.5f\n",
              int8.kl, int8.difference, rescored.kl, rescored.top1);
  EXPECT_LE(int8.kl, 2e-4);          // asked for
  EXPECT_LE(int8.difference, 5e-4);  // asked for: perplexity at most 0.05 % up
  EXPECT_LE(rescored.kl, int8.kl);
  EXPECT_GE(rescored.top1, int8.top1);
}

}  // namespace
}  // namespace fut::test
