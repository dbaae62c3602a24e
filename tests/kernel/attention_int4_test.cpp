// attention over an INT4 cache: bit by bit what ops.h says, at every edge of blocks and pages and
// however tokens are cut into passes, and close to the mathematics; and which keys it reads raw.
// Numbers at the edge are in attention_int4_numbers_test.cpp, what is stored in kv_store_test.cpp.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/numeric/kv_int4.h"
#include "tests/support/int4_cache.h"

namespace fut::test {
namespace {

// 1, 2, 4 and 8 query heads a KV head, every supported pair of head_dim and group, whole-head and
// smaller blocks of rotation.
std::vector<AttentionShape> shapes() {
  return {{2, 2, 64, 64, 64},  {4, 2, 64, 32, 0},   {4, 1, 128, 128, 128},
          {8, 1, 128, 64, 32}, {2, 1, 128, 32, 64}, {1, 1, 64, 32, 2}};
}

std::string name_of(const AttentionShape& s) {
  return fmt::format("{}/{} heads of {}, groups of {}, rotation {}", s.num_q_heads, s.num_kv_heads,
                     s.head_dim, s.kv_group, s.rotation_block);
}

Shape shape_of(const std::vector<float>& values, const AttentionShape& s) {
  return {static_cast<std::int64_t>(values.size()) / s.q_cols(), s.q_cols()};
}

std::vector<float> joined(std::vector<float> first, const std::vector<float>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST(AttentionInt4, DecodesAsTheContractSaysAtEveryLength) {
  const std::vector<CpuSetup> setups = cpu_setups();
  constexpr int kLength = 82;
  for (const AttentionShape& shape : shapes()) {
    Int4CacheReference reference(shape, {kLength});
    const std::vector<float> expected =
        decode_tokens(reference, kLength, random_numbers(2), DType::BF16);
    for (const CpuSetup& setup : setups) {
      Int4Cache cache(*setup.backend, shape, {kLength});
      const std::vector<float> actual =
          decode_tokens(cache, kLength, random_numbers(2), DType::BF16);
      EXPECT_TRUE(same_bits(expected, actual, shape_of(expected, shape)))
          << setup.name << ", " << name_of(shape);
      EXPECT_TRUE(cache.bytes() == reference.bytes()) << setup.name << ", " << name_of(shape);
    }
  }
}

// Passes that begin at 1 .. 40 and bring 1, 17 or 40 tokens, all of them sequences of one step.
TEST(AttentionInt4, PassesMayBeginAnywhere) {
  const std::vector<CpuSetup> setups = cpu_setups();
  const AttentionShape shape = {2, 1, 64, 32, 64};
  AttentionStep first, second;
  std::vector<int> capacities;
  for (int begin = 1; begin <= 40; ++begin) {
    for (const int tokens : {1, 17, 40}) {
      if (tokens == 40 && begin % 5 != 0) continue;
      const auto sequence = static_cast<int>(capacities.size());
      first.passes.push_back({sequence, 0, begin});
      second.passes.push_back({sequence, begin, tokens});
      capacities.push_back(begin + tokens);
    }
  }
  for (const DType in : {DType::F32, DType::BF16}) {
    first.in = in;
    second.in = in;
    Int4CacheReference reference(shape, capacities);
    const std::vector<float> expected_first = reference.run(first, random_numbers());
    const std::vector<float> expected = reference.run(second, random_numbers());
    for (const CpuSetup& setup : {std::cref(setups.front()), std::cref(setups.back())}) {
      Int4Cache cache(*setup.backend, shape, capacities);
      EXPECT_TRUE(same_bits(expected_first, cache.run(first, random_numbers()),
                            shape_of(expected_first, shape)))
          << setup.name;
      EXPECT_TRUE(
          same_bits(expected, cache.run(second, random_numbers()), shape_of(expected, shape)))
          << setup.name;
      EXPECT_TRUE(cache.bytes() == reference.bytes()) << setup.name;
    }
  }
}

// Long passes behind long histories, over page borders: 16 blocks of codes and more.
TEST(AttentionInt4, PrefillsAsTheContractSaysBehindAHistory) {
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const AttentionShape& shape : shapes()) {
    const std::vector<int> capacities = {63, 64, 65, 150, 33};
    const std::vector<AttentionStep> steps = {
        {{{0, 0, 30}, {1, 0, 64}, {2, 0, 64}, {3, 0, 66}}, DType::BF16, DType::BF16, {}},
        {{{3, 66, 62}, {0, 30, 33}, {2, 64, 1}, {4, 0, 31}}, DType::BF16, DType::F16, {}},
        {{{4, 31, 2}, {3, 128, 22}}, DType::BF16, DType::BF16, {}}};
    Int4CacheReference reference(shape, capacities);
    std::vector<float> expected;
    for (const AttentionStep& step : steps) {
      expected = joined(std::move(expected), reference.run(step, random_numbers()));
    }
    for (const CpuSetup& setup : setups) {
      Int4Cache cache(*setup.backend, shape, capacities);
      std::vector<float> actual;
      for (const AttentionStep& step : steps) {
        actual = joined(std::move(actual), cache.run(step, random_numbers()));
      }
      EXPECT_TRUE(same_bits(expected, actual, shape_of(expected, shape)))
          << setup.name << ", " << name_of(shape);
      EXPECT_TRUE(cache.bytes() == reference.bytes()) << setup.name << ", " << name_of(shape);
    }
  }
}

TEST(AttentionInt4, StaysWithinTheDerivedBound) {
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const AttentionShape& shape : shapes()) {
    for (const DType in : {DType::F32, DType::BF16}) {
      const std::vector<int> capacities = {150, 80, 20};
      const AttentionStep history = {{{0, 0, 149}, {1, 0, 71}, {2, 0, 16}}, in, DType::BF16, {}};
      const AttentionStep step = {{{0, 149, 1}, {1, 71, 3}, {2, 16, 2}}, in, DType::F16, {}};
      Int4CacheReference reference(shape, capacities);
      reference.store(history, random_numbers());
      const std::vector<Bounded> expected = reference.run_bounded(step, random_numbers());
      Int4Cache cache(*setups.back().backend, shape, capacities);
      (void)cache.run(history, random_numbers());
      const std::vector<float> actual = cache.run(step, random_numbers());
      EXPECT_TRUE(within_bounds(expected, actual, shape_of(actual, shape)))
          << dtype_name(in) << ", " << name_of(shape);
    }
  }
}

// A sequence's outputs are the same alone and among others that come and go.
TEST(AttentionInt4, GivesTheSameBitsAloneAndInLockStep) {
  const std::vector<CpuSetup> setups = cpu_setups();
  const AttentionShape shape = {4, 1, 128, 128, 128};
  constexpr int kLength = 50;
  for (const CpuSetup& setup : setups) {
    Int4Cache together(*setup.backend, shape, {kLength, kLength, 70, 9});
    (void)together.run({{{2, 0, 20}}, DType::BF16, DType::BF16, {}}, random_numbers());
    std::vector<std::vector<float>> outputs(4);
    for (int position = 0; position < kLength; ++position) {
      AttentionStep step;
      step.passes = {{0, position, 1}, {1, position, 1}, {2, 20 + position, 1}};
      if (position < 9) step.passes.push_back({3, position, 1});
      if (position % 2 == 1) std::reverse(step.passes.begin(), step.passes.end());
      const std::vector<float> out = together.run(step, random_numbers());
      for (std::size_t i = 0; i < step.passes.size(); ++i) {
        const auto own = std::span(out).subspan(i * 512, 512);
        auto& all = outputs[static_cast<std::size_t>(step.passes[i].sequence)];
        all.insert(all.end(), own.begin(), own.end());
      }
    }
    Int4Cache alone(*setup.backend, shape, {kLength});
    const std::vector<float> expected =
        decode_tokens(alone, kLength, random_numbers(), DType::BF16);
    EXPECT_TRUE(same_bits(expected, outputs[0], {kLength, 512})) << setup.name;
  }
}

// ---- which keys are raw ------------------------------------------------------------------------

// Keys of +-1 without a pattern, and queries so large that all probability falls on one of them:
// the output is that position's value, as it was stored.
Numbers needles(int (*target)(int position, int head)) {
  return [target](Operand operand, int sequence, int position, int head, int dim) {
    const Numbers random = random_numbers();
    const auto sign = [&](int of) {
      return random(Operand::Key, sequence, of, 0, 31 * dim) > 0 ? 1.0F : -1.0F;
    };
    if (operand == Operand::Key) return sign(position);
    if (operand == Operand::Query) return 128 * sign(target(position, head));
    return random(operand, sequence, position, head, dim);
  };
}

TEST(AttentionInt4, ADecodeStepReadsRawWhatTheRuleSaysAndCodesElsewhere) {
  const std::vector<CpuSetup> setups = cpu_setups();
  constexpr int kLength = 100;
  constexpr int kHeads = 8;
  const AttentionShape shape = {kHeads, 1, 64, 64, 0};
  const auto target = [](int position, int head) {
    return head * (position + 1) / kHeads + position / 3 % (position / kHeads + 1);
  };
  const Numbers numbers = needles(target);
  Int4Cache cache(*setups.back().backend, shape, {kLength});
  int coded = 0;
  for (int position = 0; position < kLength; ++position) {
    const std::vector<float> out =
        cache.run({{{0, position, 1}}, DType::F32, DType::F16, {}}, numbers);
    for (int head = 0; head < kHeads; ++head) {
      const int key = target(position, head);
      ASSERT_LE(key, position);
      std::vector<float> value;
      for (int d = 0; d < 64; ++d) {
        value.push_back(rounded_to(DType::BF16, numbers(Operand::Value, 0, key, 0, d)));
      }
      if (!layout::is_raw(key, position)) {
        ++coded;
        const KvInt4Params params = kv_int4_params(value);
        for (float& v : value) v = decode_kv_int4(encode_kv_int4(v, params), params);
      }
      for (float& v : value) v = rounded_to(DType::F16, v);
      EXPECT_TRUE(same_bits(value, std::span(out).subspan(head * 64, 64), {1, 64}))
          << "key " << key << " for the query at " << position;
    }
  }
  EXPECT_GT(coded, 200);  // of 800, so that both kinds are there
}

// The step's own keys are raw for all of its queries, though they fill blocks.
TEST(AttentionInt4, APassReadsItsOwnKeysRaw) {
  const std::vector<CpuSetup> setups = cpu_setups();
  const AttentionShape shape = {1, 1, 64, 64, 0};
  const Numbers numbers = needles([](int position, int) { return position / 2; });
  for (const DType in : {DType::F32, DType::BF16}) {
    Int4Cache cache(*setups.back().backend, shape, {100});
    const std::vector<float> out = cache.run({{{0, 0, 100}}, in, DType::BF16, {}}, numbers);
    for (int position = 0; position < 100; ++position) {
      for (int d = 0; d < 64; ++d) {
        EXPECT_EQ(out[static_cast<std::size_t>(position * 64 + d)],
                  rounded_to(DType::BF16, numbers(Operand::Value, 0, position / 2, 0, d)))
            << position;
      }
    }
  }
}

}  // namespace
}  // namespace fut::test
