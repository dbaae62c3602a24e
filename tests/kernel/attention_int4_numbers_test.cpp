// attention over an INT4 cache where numbers are special: exact sums, groups without a range, numbers
// beyond FP16, results in E4M3, rotation; and whether a fault would show. The contract at every
// length is in attention_int4_test.cpp.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/int4_cache.h"

namespace fut::test {
namespace {

// ---- exact sums --------------------------------------------------------------------------------

// Values of whole steps between 0 and 15 times `step`, whose ends are there: codes hold them.
Numbers whole_steps(float step) {
  return [step](Operand operand, int sequence, int position, int head, int dim) {
    if (operand == Operand::Query) return 0.0F;
    if (dim % 32 < 2) return dim % 32 == 0 ? 0.0F : 15 * step;
    const float random = random_numbers()(operand, sequence, position, head, dim);
    return step * std::clamp(std::round(8 + 4 * random), 0.0F, 15.0F);
  };
}

// A query of zeros weighs all values alike: their mean, which is exact where the number of keys is
// a power of two.
TEST(AttentionInt4Numbers, AveragesValuesThatTheCodesHold) {
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const float step : {1.0F, 0.125F, 64.0F}) {
    const Numbers numbers = whole_steps(step);
    for (const AttentionShape& shape : {AttentionShape{2, 1, 128, 128, 0}, {2, 2, 64, 32, 0}}) {
      Int4Cache cache(*setups.back().backend, shape, {128});
      for (const int length : {64, 128}) {
        const int begin = length - 64;
        (void)cache.run({{{0, begin, 63}}, DType::BF16, DType::BF16, {}}, numbers);
        const std::vector<float> out =
            cache.run({{{0, length - 1, 1}}, DType::F32, DType::F16, {}}, numbers);
        std::vector<float> expected;
        for (int i = 0; i < static_cast<int>(shape.q_cols()); ++i) {
          const int head = i / shape.head_dim / (shape.num_q_heads / shape.num_kv_heads);
          float sum = 0;
          for (int k = 0; k < length; ++k) {
            sum += numbers(Operand::Value, 0, k, head, i % shape.head_dim);
          }
          expected.push_back(rounded_to(DType::F16, sum / static_cast<float>(length)));
        }
        EXPECT_TRUE(same_bits(expected, out, {1, shape.q_cols()})) << step << ", " << length;
      }
    }
  }
}

// ---- numbers at the edge -----------------------------------------------------------------------

TEST(AttentionInt4Numbers, GroupsWithoutARangeAreSafe) {
  const std::vector<CpuSetup> setups = cpu_setups();
  const AttentionShape shape = {2, 1, 64, 32, 64};
  const Numbers zeros = [](Operand, int, int, int, int) { return 0.0F; };
  const Numbers constant = [](Operand operand, int, int, int, int) {
    return operand == Operand::Key ? -3.0F : 0.75F;
  };
  for (const auto& [numbers, value] : {std::pair(zeros, 0.0F), std::pair(constant, 0.75F)}) {
    Int4Cache cache(*setups.back().backend, shape, {70});
    for (const float v : decode_tokens(cache, 70, numbers, DType::BF16)) ASSERT_EQ(v, value);
    Int4Cache prefilled(*setups.back().backend, shape, {70});
    (void)prefilled.run({{{0, 0, 40}}, DType::BF16, DType::BF16, {}}, numbers);
    for (const float v : prefilled.run({{{0, 40, 30}}, DType::BF16, DType::BF16, {}}, numbers)) {
      ASSERT_EQ(v, value);
    }
  }
}

// Keys and values beyond FP16's range lose their size, nothing else: no infinity, no NaN.
TEST(AttentionInt4Numbers, ParametersSaturate) {
  const std::vector<CpuSetup> setups = cpu_setups();
  const AttentionShape shape = {2, 1, 64, 64, 0};
  const Numbers random = random_numbers(1e-6F);
  const Numbers huge = [&](Operand operand, int sequence, int position, int head, int dim) {
    const float v = random(operand, sequence, position, head, dim);
    return operand == Operand::Query ? v : v * 1e7F;
  };
  Int4CacheReference reference(shape, {60});
  const std::vector<float> expected = decode_tokens(reference, 60, huge, DType::F16);
  for (const float v : expected) ASSERT_TRUE(std::isfinite(v));
  EXPECT_EQ(*std::max_element(expected.begin(), expected.end()), 65504.0F);
  for (const CpuSetup& setup : setups) {
    Int4Cache cache(*setup.backend, shape, {60});
    EXPECT_TRUE(same_bits(expected, decode_tokens(cache, 60, huge, DType::F16), {60, 128}))
        << setup.name;
  }
}

// ---- types of the result -----------------------------------------------------------------------

TEST(AttentionInt4Numbers, ScalesAndCountsForE4m3) {
  const std::vector<CpuSetup> setups = cpu_setups();
  const AttentionShape shape = {4, 2, 64, 64, 64};
  const AttentionStep history = {{{0, 0, 40}}, DType::BF16, DType::BF16, {}};
  const AttentionStep step = {{{0, 40, 3}}, DType::F32, DType::E4M3, {64.0F, 4096.0F}};
  Int4CacheReference reference(shape, {43});
  reference.store(history, random_numbers());
  const std::vector<float> expected = reference.run(step, random_numbers());
  const auto largest = std::count_if(expected.begin(), expected.end(),
                                     [](float v) { return std::fabs(v) == 448.0F; });
  for (const CpuSetup& setup : setups) {
    Int4Cache cache(*setup.backend, shape, {43});
    (void)cache.run(history, random_numbers());
    const std::uint64_t before = setup.backend->saturations().attention_outputs;
    EXPECT_TRUE(same_bits(expected, cache.run(step, random_numbers()), {3, 256})) << setup.name;
    const std::uint64_t clipped = setup.backend->saturations().attention_outputs - before;
    EXPECT_GT(clipped, 0U);
    EXPECT_LE(clipped, static_cast<std::uint64_t>(largest));
  }
}

// ---- rotation ----------------------------------------------------------------------------------

// Rotating both operands leaves their product alone. Operands are small integers, which BF16 holds;
// rotated they are rounded, and the bound is what that can do.
TEST(AttentionInt4Numbers, RotationKeepsTheProductWithinRounding) {
  const std::vector<CpuSetup> setups = cpu_setups();
  const Numbers numbers = [](Operand operand, int sequence, int position, int head, int dim) {
    const float v = random_numbers()(operand, sequence, position, head, dim);
    return std::clamp(std::round(v), -3.0F, 3.0F);
  };
  for (const int block : {2, 16, 64}) {
    AttentionShape shape = {2, 1, 64, 64, block};
    const AttentionStep step = {{{0, 0, 12}}, DType::F32, DType::F16, {}};
    Int4Cache rotated(*setups.back().backend, shape, {12});
    const std::vector<float> with = rotated.run(step, numbers);
    shape.rotation_block = 0;
    Int4Cache plain(*setups.back().backend, shape, {12});
    const std::vector<float> without = plain.run(step, numbers);

    // Scores from rotated rows in bounds: an element passes log2(block) additions and one product.
    const auto bounded_row = [&](Operand operand, int position, int head) {
      std::vector<Bounded> row;
      for (int d = 0; d < 64; ++d) row.emplace_back(numbers(operand, 0, position, head, d));
      for (int distance = 1; distance < block; distance *= 2) {
        const std::vector<Bounded> before = row;
        for (int i = 0; i < 64; ++i) {
          const auto at = static_cast<std::size_t>(i);
          const Bounded& partner = before[static_cast<std::size_t>(i ^ distance)];
          row[at] = (i & distance) == 0 ? before[at] + partner : partner - before[at];
        }
      }
      const Bounded norm = Bounded(1.0F) / sqrt(Bounded(static_cast<float>(block)));
      for (Bounded& v : row) v = narrowed(v * norm, DType::BF16);
      return row;
    };
    for (int t = 0; t < 12; ++t) {
      for (int head = 0; head < 2; ++head) {
        std::vector<Bounded> p;
        for (int i = 0; i <= t; ++i) {
          const Bounded score =
              contract_dot(bounded_row(Operand::Query, t, head), bounded_row(Operand::Key, i, 0));
          p.push_back(exp(score * Bounded(0.125F) - Bounded(8.0F)));
        }
        const std::vector<Bounded> ones(p.size(), Bounded(1.0F));
        std::vector<Bounded> weights;
        for (const Bounded& one : p) weights.push_back(narrowed(one, DType::BF16));
        std::vector<Bounded> expected;
        for (int d = 0; d < 64; ++d) {
          std::vector<Bounded> values;
          for (int i = 0; i <= t; ++i) values.emplace_back(numbers(Operand::Value, 0, i, 0, d));
          expected.push_back(
              narrowed(dot(weights, values, t + 2) / dot(p, ones, t + 2), DType::F16));
        }
        const std::size_t first = static_cast<std::size_t>((t * 2 + head) * 64);
        EXPECT_TRUE(within_bounds(expected, std::span(with).subspan(first, 64), {1, 64})) << block;
        EXPECT_TRUE(within_bounds(expected, std::span(without).subspan(first, 64), {1, 64}))
            << block;
      }
    }
  }
}

// ---- would a fault show? -----------------------------------------------------------------------

TEST(AttentionInt4Numbers, FaultsOfTheReferenceShow) {
  const std::vector<CpuSetup> setups = cpu_setups();
  const AttentionShape shape = {4, 1, 64, 64, 64};
  for (const DType in : {DType::F32, DType::BF16}) {
    const AttentionStep history = {{{0, 0, 60}}, DType::F32, DType::BF16, {}};
    const AttentionStep step = {{{0, 60, 2}}, in, DType::BF16, {}};
    Int4Cache cache(*setups.back().backend, shape, {62});
    (void)cache.run(history, random_numbers());
    const std::vector<float> actual = cache.run(step, random_numbers());
    for (const Fault fault :
         {Fault::None, Fault::NoMinimum, Fault::OtherNibble, Fault::KeysNotRotated}) {
      Int4CacheReference reference(shape, {62}, fault);
      reference.store(history, random_numbers());
      const std::vector<float> expected = reference.run(step, random_numbers());
      EXPECT_EQ(fault == Fault::None, bool(same_bits(expected, actual, {2, 256})))
          << static_cast<int>(fault) << ", " << dtype_name(in);
    }
  }
}

TEST(AttentionInt4Numbers, RefusesSlotsThatAreNotThereOrTaken) {
  const std::vector<CpuSetup> setups = cpu_setups();
  const AttentionShape shape = {1, 1, 64, 64, 0};
  Int4Cache cache(*setups.front().backend, shape, {20, 20});
  const AttentionStep step = {{{0, 0, 3}, {1, 0, 2}}, DType::F32, DType::BF16, {}};
  const auto run_with = [&](std::vector<std::int32_t> slots) {
    (void)cache.run(step, random_numbers(),
                    [&](AttentionArgs& a) { a.batch.raw_slots = slots.data(); });
  };
  EXPECT_THROW(run_with({0, 0}), Error);
  EXPECT_THROW(run_with({-1, 0}), Error);
  EXPECT_THROW(run_with({0, 3}), Error);
  EXPECT_NO_THROW(run_with({2, 0}));
}

}  // namespace
}  // namespace fut::test
