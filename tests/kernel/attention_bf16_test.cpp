// attention over a BF16 cache, for F32 and BF16 queries and every type of result: bit by bit what
// the contract says, within derived bounds, and the same however a token comes.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/dense_attention.h"

namespace fut::test {
namespace {

std::vector<DenseAttention> cases(DType in, DType out) {
  std::vector<DenseAttention> all = dense_attention_cases();
  for (DenseAttention& c : all) {
    c.cache = DType::BF16;
    c.in = in;
    c.out = out;
    if (out == DType::E4M3) c.out_scales.assign(static_cast<std::size_t>(c.num_kv_heads), 16.0F);
  }
  return all;
}

std::string name_of(const DenseAttention& c) {
  return fmt::format("{} to {}, {}/{} heads of {}, {} sequences", dtype_name(c.in),
                     dtype_name(c.out), c.num_q_heads, c.num_kv_heads, c.head_dim,
                     c.sequences.size());
}

TEST(AttentionBf16, IsTheContractBitForBitOnEverySetup) {
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const auto& [in, out] :
       {std::pair(DType::F32, DType::F16), std::pair(DType::BF16, DType::BF16),
        std::pair(DType::BF16, DType::E4M3)}) {
    for (const DenseAttention& c : cases(in, out)) {
      // The types of the result are the last step: a few shapes show them.
      if (out != DType::BF16 && c.num_kv_heads != 2) continue;
      const std::vector<float> q = c.queries();
      const std::vector<float> expected = c.expected(q);
      for (const CpuSetup& setup : setups) {
        EXPECT_TRUE(same_bits(expected, c.run(*setup.backend, q), c.shape()))
            << setup.name << ", " << name_of(c);
      }
    }
  }
}

TEST(AttentionBf16, StaysWithinTheDerivedBound) {
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const DenseAttention& c : cases(DType::F32, DType::F16)) {
    const std::vector<float> q = c.queries();
    EXPECT_TRUE(within_bounds(c.bounds(q), c.run(*setups.back().backend, q), c.shape()))
        << name_of(c);
  }
}

// Rounding here or before makes no difference.
TEST(AttentionBf16, QueriesOfEitherTypeGiveTheSameBits) {
  const std::vector<CpuSetup> setups = cpu_setups();
  const std::vector<DenseAttention> wide = cases(DType::F32, DType::BF16);
  const std::vector<DenseAttention> narrow = cases(DType::BF16, DType::BF16);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const std::vector<float> q = wide[i].queries();
    EXPECT_TRUE(same_bits(wide[i].run(*setups.back().backend, q),
                          narrow[i].run(*setups.back().backend, q), wide[i].shape()))
        << name_of(wide[i]);
  }
}

TEST(AttentionBf16, GivesTheSameBitsForATokenHoweverItIsBatched) {
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const CpuSetup& setup : setups) {
    DenseAttention c = {{{70, 70}}, 4, 1, 64, DType::BF16, DType::BF16, DType::BF16};
    const std::vector<float> q = c.queries();
    const std::vector<float> all = c.run(*setup.backend, q);
    for (const int length : {1, 16, 17, 64, 65, 70}) {
      const auto first = (length - 1) * c.cols();
      const std::vector<float> own(q.begin() + first, q.begin() + first + c.cols());
      DenseAttention decode = c;
      decode.sequences = {{1, length}};
      EXPECT_TRUE(same_bits(std::span(all).subspan(static_cast<std::size_t>(first), 256),
                            decode.run(*setup.backend, own), {1, 256}))
          << setup.name << ", length " << length;
    }
  }
}

// From the same operands float32 throughout gives other bits: probabilities meet values as BF16.
TEST(AttentionBf16, RoundsProbabilities) {
  const std::vector<CpuSetup> setups = cpu_setups();
  DenseAttention c = {{{1, 5}}, 1, 1, 16, DType::BF16, DType::F32, DType::F16};
  const std::vector<float> q = normal_values(16, 3, 1.5F);
  const std::vector<float> rounded = c.run(*setups.back().backend, q);
  c.cache = DType::F32;
  c.out = DType::F32;
  std::vector<float> q_rounded = q;
  for (float& v : q_rounded) v = rounded_to(DType::BF16, v);
  std::vector<float> plain = c.run(*setups.back().backend, q_rounded);
  for (float& v : plain) v = rounded_to(DType::F16, v);
  EXPECT_FALSE(same_bits(plain, rounded, {1, 16}));
}

// The larger of two scales sends values past 448, and these alone are counted.
TEST(AttentionBf16, CountsWhatE4m3Clips) {
  const std::vector<CpuSetup> setups = cpu_setups();
  DenseAttention c = {{{2, 40}}, 2, 2, 16, DType::BF16, DType::BF16, DType::E4M3, {8.0F, 8192.0F}};
  const std::vector<float> q = c.queries();
  DenseAttention wide = c;
  wide.out = DType::F16;
  wide.out_scales = {};
  const std::vector<float> unscaled = wide.expected(q);
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < unscaled.size(); ++i) {
    // F16 has eleven bits: a number near the edge would be on the other side of it by rounding.
    const float scaled = std::fabs(unscaled[i]) * c.out_scales[i / 16 % 2];
    ASSERT_GT(std::fabs(scaled - 448.0F), 448.0F * 0x1p-10F);
    expected += scaled > 448.0F ? 1 : 0;
  }
  ASSERT_GT(expected, 0U);
  for (const CpuSetup& setup : setups) {
    const std::uint64_t before = setup.backend->saturations().attention_outputs;
    EXPECT_TRUE(same_bits(c.expected(q), c.run(*setup.backend, q), c.shape()));
    EXPECT_EQ(setup.backend->saturations().attention_outputs - before, expected) << setup.name;
  }
}

}  // namespace
}  // namespace fut::test
