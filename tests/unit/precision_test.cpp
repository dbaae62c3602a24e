// What goes with what: precisions, cache types, and the types of a step's activations.
#include "engine/precision.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fut {
namespace {

ModelConfig config_with(int head_dim) {
  ModelConfig config;
  config.hidden_size = 256;
  config.intermediate_size = 768;
  config.num_q_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = head_dim;
  return config;
}

KvCacheChoice chosen(KvCacheDtype dtype) {
  KvCacheChoice choice;
  choice.has_dtype = true;
  choice.dtype = dtype;
  return choice;
}

TEST(KvCacheOptions, FollowThePrecisionWhereNothingIsSaid) {
  const ModelConfig config = config_with(128);
  EXPECT_EQ(resolve_kv_cache(config, Precision::F32, {}).dtype, KvCacheDtype::F32);
  EXPECT_EQ(resolve_kv_cache(config, Precision::Bf16, {}).dtype, KvCacheDtype::Bf16);
  EXPECT_EQ(resolve_kv_cache(config, Precision::Fp8, {}).dtype, KvCacheDtype::Bf16);
  const KvCacheOptions int4 = resolve_kv_cache(config, Precision::Int4, {});
  EXPECT_EQ(int4.dtype, KvCacheDtype::Int4);
  EXPECT_EQ(int4.rotation_block, 128);
  EXPECT_EQ(int4.group, 128);
}

TEST(KvCacheOptions, RotationCanBeCutIntoBlocksOrLeftOut) {
  const ModelConfig config = config_with(64);
  KvCacheChoice choice;
  choice.rotation_block = 32;
  choice.group = 32;
  EXPECT_EQ(resolve_kv_cache(config, Precision::Int4, choice).rotation_block, 32);
  EXPECT_EQ(resolve_kv_cache(config, Precision::Int4, choice).group, 32);
  choice.rotate = false;
  EXPECT_EQ(resolve_kv_cache(config, Precision::Int4, choice).rotation_block, 0);
}

std::string refusal(const ModelConfig& config, Precision precision, const KvCacheChoice& choice) {
  return test::error_message(ErrorKind::Usage,
                             [&] { (void)resolve_kv_cache(config, precision, choice); });
}

TEST(KvCacheOptions, RefuseWhatDoesNotGoTogether) {
  const ModelConfig config = config_with(128);
  test::expect_mentions(refusal(config, Precision::F32, chosen(KvCacheDtype::Int4)),
                        {"--kv-cache-dtype int4", "--precision f32"});
  test::expect_mentions(refusal(config, Precision::Int4, chosen(KvCacheDtype::F32)),
                        {"--kv-cache-dtype f32", "--precision int4"});
  KvCacheChoice choice;
  choice.rotation_block = 48;
  test::expect_mentions(refusal(config, Precision::Int4, choice), {"--kv-rotation-block 48"});
  choice.rotation_block = 256;
  test::expect_mentions(refusal(config, Precision::Int4, choice), {"--kv-rotation-block 256"});
  choice = {};
  choice.group = 16;
  test::expect_mentions(refusal(config, Precision::Int4, choice), {"--kv-group", "16"});
  test::expect_mentions(refusal(config_with(80), Precision::Int4, {}), {"head_dim 80"});
}

TEST(StepTypes, AreThoseOfTheRoundingTable) {
  const auto types = [](Precision p, StepKind kind, KvCacheDtype cache) {
    const StepTypes t = step_types(p, kind, cache);
    return std::vector{t.residual, t.qkv, t.attention, t.ffn};
  };
  using enum DType;
  using enum StepKind;
  constexpr auto kF32 = KvCacheDtype::F32;
  constexpr auto kBf16 = KvCacheDtype::Bf16;
  constexpr auto kInt4 = KvCacheDtype::Int4;
  EXPECT_EQ(types(Precision::F32, Prefill, kF32), (std::vector{F32, F32, F32, F32}));
  EXPECT_EQ(types(Precision::F32, Decode, kF32), (std::vector{F32, F32, F32, F32}));
  EXPECT_EQ(types(Precision::Bf16, Prefill, kBf16), (std::vector{BF16, BF16, BF16, BF16}));
  EXPECT_EQ(types(Precision::Bf16, Decode, kBf16), (std::vector{F32, BF16, BF16, BF16}));
  EXPECT_EQ(types(Precision::Fp8, Prefill, kBf16), (std::vector{BF16, BF16, E4M3, E4M3}));
  EXPECT_EQ(types(Precision::Fp8, Decode, kBf16), (std::vector{F32, BF16, E4M3, E4M3}));
  EXPECT_EQ(types(Precision::Fp8, Decode, kInt4), (std::vector{F32, F32, E4M3, E4M3}));
  EXPECT_EQ(types(Precision::Int4, Prefill, kInt4), (std::vector{BF16, BF16, E4M3, E4M3}));
  EXPECT_EQ(types(Precision::Int4, Decode, kInt4), (std::vector{F32, F32, F16, F16}));
  EXPECT_EQ(types(Precision::Int4, Decode, kBf16), (std::vector{F32, BF16, F16, F16}));
}

}  // namespace
}  // namespace fut
