// Prefill attention on the GPU, over BF16 pages and over an INT4 cache: the bits of the contract where
// all sums are exact, derived bounds where they are not, what is stored byte by byte, and the same
// bits whoever else is in the step. Caches begin as NaN, and guard zones lie around everything.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/dense_attention.h"
#include "tests/support/int4_cache.h"

namespace fut::test {
namespace {

// 1, 2, 3, 4 and 8 query heads a KV head, every supported pair of head_dim and group.
std::vector<AttentionShape> shapes() {
  return {{2, 2, 64, 64, 0},   {4, 2, 64, 32, 0},  {3, 1, 128, 128, 0},
          {4, 1, 128, 128, 0}, {8, 1, 128, 64, 0}, {4, 2, 128, 32, 0}};
}

std::string name_of(const AttentionShape& s) {
  return fmt::format("{}/{} heads of {}, groups of {}", s.num_q_heads, s.num_kv_heads, s.head_dim,
                     s.kv_group);
}

Shape shape_of(std::size_t outputs, const AttentionShape& s) {
  return {static_cast<std::int64_t>(outputs) / s.q_cols(), s.q_cols()};
}

// A history that begins nowhere in particular, and what comes on top of it.
struct TwoSteps {
  AttentionStep history, step;
  std::vector<int> capacities;

  void add(int begin, int tokens) {
    const auto sequence = static_cast<int>(capacities.size());
    if (begin > 0) history.passes.push_back({sequence, 0, begin});
    step.passes.push_back({sequence, begin, tokens});
    capacities.push_back(begin + tokens);
  }
};

// Passes that begin at 1 .. 40 and bring 1, 17 or 40 tokens.
TwoSteps passes_that_begin_anywhere(DType out) {
  TwoSteps steps;
  for (int begin = 1; begin <= 40; ++begin) {
    for (const int tokens : {1, 17, 40}) {
      if (tokens == 40 && begin % 5 != 0) continue;
      steps.add(begin, tokens);
    }
  }
  steps.history.in = steps.step.in = DType::BF16;
  steps.step.out = out;
  return steps;
}

// Around blocks and pages, several tiles of queries.
TwoSteps passes_over_pages(DType out) {
  TwoSteps steps;
  steps.add(0, 64);
  steps.add(63, 66);
  steps.add(150, 43);
  steps.add(64, 1);
  steps.add(0, 5);
  steps.add(191, 2);
  steps.add(33, 130);
  steps.history.in = steps.step.in = DType::BF16;
  steps.step.out = out;
  return steps;
}

// A pack of passes of all lengths around tiles, behind histories around blocks, pages and tiles; which
// length meets which history, `turn` says.
constexpr int kLengths[] = {1, 63, 64, 65, 127, 1023, 1024};
constexpr int kHistories[] = {0, 1, 15, 16, 17, 63, 64, 65, 4095};
constexpr int kTurns = 3;

std::vector<Pass> mixed_pack(int turn) {
  std::vector<Pass> passes;
  for (int i = 0; i < static_cast<int>(std::size(kHistories)); ++i) {
    passes.push_back({i, kHistories[i], kLengths[(i + 2 * turn) % std::size(kLengths)]});
  }
  return passes;
}

TwoSteps mixed_steps(int turn, DType out) {
  TwoSteps steps;
  for (const Pass& pass : mixed_pack(turn)) steps.add(pass.begin, pass.tokens);
  steps.history.in = steps.step.in = DType::BF16;
  steps.step.out = out;
  return steps;
}

// Tokens at the edge of passes and of tiles of keys and queries, and some others.
bool is_sampled(const Pass& pass, int token) {
  const int in_keys = (pass.begin + token) % 128;
  return token == 0 || token == pass.tokens - 1 || in_keys == 127 || in_keys == 0 ||
         token % 128 == 31 || token % 97 == 0;
}

// Queries of zeros weigh all values alike, and values of whole steps, which the codes hold, have
// exact sums: one division decides, and it is the same everywhere.
Numbers whole_steps(float step) {
  return [step](Operand operand, int sequence, int position, int head, int dim) {
    if (operand == Operand::Query) return 0.0F;
    if (dim % 32 < 2) return dim % 32 == 0 ? 0.0F : 15 * step;
    const float random = random_numbers()(operand, sequence, position, head, dim);
    return step * std::clamp(std::round(8 + 4 * random), 0.0F, 15.0F);
  };
}

// Scores 0, or so low that a probability is 0, or (keys that come seldom, even heads) so high that all
// others are: every query looks at about half of the keys, in no order, others than its neighbours. All
// sums of whole steps are exact, and another tile's probabilities in place of the right ones show. A key
// is a number in one dim, its kind; the first position's kind is looked at by all.
Numbers kinds_of_keys(float step) {
  return [step](Operand operand, int sequence, int position, int head, int dim) {
    constexpr int kKinds = 64;
    constexpr float kFar = 64.0F;
    const auto random = [&](int salt) {
      std::uint32_t h = static_cast<std::uint32_t>(position) * 2654435761U;
      h ^= static_cast<std::uint32_t>(salt * 97 + sequence) * 40503U;
      h = (h ^ h >> 15) * 2246822519U;
      return static_cast<int>((h ^ h >> 13) % 1000003U);
    };
    if (operand == Operand::Value) return whole_steps(step)(operand, sequence, position, head, dim);
    if (operand == Operand::Key) {
      const int kind = position == 0 ? 0 : position % 300 == 299 ? 1 : 2 + random(0) % (kKinds - 2);
      return dim == kind ? kFar : 0.0F;
    }
    if (dim == 0 || dim >= kKinds) return 0.0F;
    if (dim == 1) return head % 2 == 0 ? kFar : -kFar;
    return random(1 + 64 * head + dim) % 2 == 0 ? -kFar : 0.0F;
  };
}

// One step whose rows of q, k and v lie askew, three numbers apart: the tensor memory engine cannot read
// them, and they have to be copied.
std::vector<float> run_askew(Backend& gpu, Int4Cache& cache, const AttentionShape& shape,
                             const AttentionStep& step, const Numbers& numbers) {
  constexpr std::int64_t kGap = 3;
  const auto rows = [&](Operand operand, std::int64_t cols) {
    const std::vector<float> values = operand_rows(shape, step.passes, operand, numbers);
    std::vector<std::uint16_t> bits;
    for (std::size_t i = 0; i < values.size(); ++i) {
      bits.push_back(static_cast<std::uint16_t>(bits_of(DType::BF16, values[i])));
      if (static_cast<std::int64_t>(i + 1) % cols == 0) bits.insert(bits.end(), kGap, 0xFFFF);
    }
    return Guarded<std::uint16_t>(gpu, bits);
  };
  const Guarded<std::uint16_t> queries = rows(Operand::Query, shape.q_cols());
  const Guarded<std::uint16_t> keys = rows(Operand::Key, shape.kv_cols());
  const Guarded<std::uint16_t> values = rows(Operand::Value, shape.kv_cols());
  return cache.run(step, numbers, [&](AttentionArgs& a) {
    const auto view = [](const Guarded<std::uint16_t>& from, const ConstActivationView& like) {
      return ConstActivationView(from.data(), DType::BF16, like.rows, like.cols, like.cols + kGap);
    };
    a.q = view(queries, a.q);
    a.k = view(keys, a.k);
    a.v = view(values, a.v);
  });
}

DenseAttention dense(std::vector<SequenceShape> sequences, int heads, int kv_heads, int head_dim,
                     DType in, DType out) {
  DenseAttention c = {std::move(sequences), heads, kv_heads, head_dim, DType::BF16, in, out, {},
                      SumOrder::Tiles};
  if (out == DType::E4M3) {
    for (int head = 0; head < kv_heads; ++head)
      c.out_scales.push_back(head == 0 ? 256.0F : 16384.0F);
  }
  return c;
}

const std::vector<SequenceShape> kMixed = {{3, 66}, {1, 130}, {65, 128}, {0, 30}, {2, 2}, {70, 70}};

// ---- BF16 pages ----------------------------------------------------------------------------------

TEST(AttentionPrefillCuda, AveragesExactlyOverNumbers) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& cpu = *setups.back().backend;
  for (const DType out : {DType::BF16, DType::F16, DType::E4M3}) {
    for (const DType in : {DType::F32, DType::BF16}) {
      const DenseAttention c = dense(kMixed, 4, 2, 64, in, out);
      const std::vector<float> q(c.queries().size(), 0.0F);
      const std::uint64_t cpu_before = cpu.saturations().attention_outputs;
      const std::uint64_t gpu_before = gpu->saturations().attention_outputs;
      EXPECT_TRUE(same_bits(c.run(cpu, q), c.run(*gpu, q), c.shape()))
          << dtype_name(in) << " to " << dtype_name(out);
      const std::uint64_t clipped = cpu.saturations().attention_outputs - cpu_before;
      EXPECT_EQ(gpu->saturations().attention_outputs - gpu_before, clipped);
      EXPECT_EQ(clipped > 0, out == DType::E4M3);
    }
  }
}

TEST(AttentionPrefillCuda, AveragesExactlyOverNumbersAtAllLengths) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& cpu = *setups.back().backend;
  for (int turn = 0; turn < kTurns; ++turn) {
    std::vector<SequenceShape> sequences;
    for (const Pass& pass : mixed_pack(turn)) {
      sequences.push_back({pass.tokens, pass.begin + pass.tokens});
    }
    const bool wide = turn % 2 != 0;
    const DenseAttention c =
        dense(sequences, wide ? 8 : 3, 1, wide ? 128 : 64, DType::BF16, DType::F16);
    const std::vector<float> q(c.queries().size(), 0.0F);
    EXPECT_TRUE(same_bits(c.run(cpu, q), c.run(*gpu, q), c.shape())) << "turn " << turn;
  }
}

TEST(AttentionPrefillCuda, StaysWithinTheBoundOverNumbers) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  for (const DenseAttention& c :
       {dense(kMixed, 2, 2, 64, DType::F32, DType::F16),
        dense(kMixed, 3, 1, 128, DType::BF16, DType::F16),
        dense(kMixed, 8, 2, 128, DType::BF16, DType::BF16),
        dense({{63, 63}, {1, 1}, {1, 64}, {64, 64}, {1, 65}}, 8, 1, 64, DType::F32, DType::BF16),
        dense({{40, 700}, {3, 513}}, 2, 1, 128, DType::BF16, DType::F16)}) {
    const std::vector<float> q = c.queries();
    EXPECT_TRUE(within_bounds(c.bounds(q), c.run(*gpu, q), c.shape()))
        << c.num_q_heads << "/" << c.num_kv_heads << " heads of " << c.head_dim;
  }
}

TEST(AttentionPrefillCuda, QueriesOfEitherTypeGiveTheSameBits) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  const DenseAttention wide = dense(kMixed, 4, 1, 128, DType::F32, DType::F16);
  const DenseAttention narrow = dense(kMixed, 4, 1, 128, DType::BF16, DType::F16);
  const std::vector<float> q = wide.queries();
  EXPECT_TRUE(same_bits(wide.run(*gpu, q), narrow.run(*gpu, q), wide.shape()));
}

TEST(AttentionPrefillCuda, SurvivesScoresThatWouldOverflowExp) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  const DenseAttention c = dense({{70, 130}}, 2, 2, 64, DType::BF16, DType::BF16);
  const std::vector<float> q(c.queries().size(), 1e4F);
  for (const float v : c.run(*gpu, q)) ASSERT_TRUE(std::isfinite(v));
}

// Alone, and behind others whose pages lie elsewhere.
TEST(AttentionPrefillCuda, GivesTheSameBitsAloneAndInCompanyOverNumbers) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  const DenseAttention alone = dense({{70, 150}}, 4, 1, 128, DType::BF16, DType::F16);
  const DenseAttention company =
      dense({{70, 150}, {1, 9}, {33, 64}, {2, 200}}, 4, 1, 128, DType::BF16, DType::F16);
  const std::vector<float> q = company.queries();
  const auto own = static_cast<std::size_t>(alone.shape().rows * alone.cols());
  const std::vector<float> first = alone.run(*gpu, {q.begin(), q.begin() + 70 * alone.cols()});
  const std::vector<float> all = company.run(*gpu, q);
  EXPECT_TRUE(same_bits(first, std::span(all).first(own), alone.shape()));
  EXPECT_TRUE(
      same_bits(first, alone.run(*gpu, {q.begin(), q.begin() + 70 * alone.cols()}), alone.shape()));
}

// ---- an INT4 cache -------------------------------------------------------------------------------

TEST(AttentionPrefillCuda, AveragesExactlyOverCodesAndStoresTheBytesOfTheContract) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const AttentionShape& shape : shapes()) {
    for (const DType out : {DType::BF16, DType::E4M3}) {
      for (TwoSteps steps : {passes_that_begin_anywhere(out), passes_over_pages(out)}) {
        if (out == DType::E4M3) {
          steps.step.out_scales.assign(static_cast<std::size_t>(shape.num_kv_heads), 64.0F);
        }
        const Numbers numbers = whole_steps(0.5F);
        Int4Cache cpu(*setups.back().backend, shape, steps.capacities);
        (void)cpu.run(steps.history, numbers);
        const std::vector<float> expected = cpu.run(steps.step, numbers);
        Int4Cache cache(*gpu, shape, steps.capacities);
        (void)cache.run(steps.history, numbers);
        EXPECT_TRUE(
            same_bits(expected, cache.run(steps.step, numbers), shape_of(expected.size(), shape)))
            << name_of(shape) << " to " << dtype_name(out);
        EXPECT_TRUE(cache.bytes() == cpu.bytes()) << name_of(shape);
      }
    }
  }
}

TEST(AttentionPrefillCuda, StaysWithinTheBoundOverCodes) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  for (const AttentionShape& shape : shapes()) {
    const bool small = shape.head_dim == 64;
    const TwoSteps steps =
        small ? passes_that_begin_anywhere(DType::F16) : passes_over_pages(DType::BF16);
    Int4CacheReference reference(shape, steps.capacities);
    reference.store(steps.history, random_numbers(1.5F));
    const std::vector<Bounded> expected =
        reference.run_bounded(steps.step, random_numbers(1.5F), SumOrder::Tiles);
    Int4Cache cache(*gpu, shape, steps.capacities);
    (void)cache.run(steps.history, random_numbers(1.5F));
    EXPECT_TRUE(within_bounds(expected, cache.run(steps.step, random_numbers(1.5F)),
                              shape_of(expected.size(), shape)))
        << name_of(shape);
    EXPECT_TRUE(cache.bytes() == reference.bytes()) << name_of(shape);
  }
}

TEST(AttentionPrefillCuda, StaysWithinTheBoundBehindALongHistory) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  const AttentionShape shape = {2, 1, 64, 32, 0};
  TwoSteps steps;
  steps.add(1000, 24);
  steps.add(777, 9);
  steps.history.in = steps.step.in = DType::BF16;
  steps.step.out = DType::F16;
  Int4CacheReference reference(shape, steps.capacities);
  reference.store(steps.history, random_numbers());
  const std::vector<Bounded> expected =
      reference.run_bounded(steps.step, random_numbers(), SumOrder::Tiles);
  Int4Cache cache(*gpu, shape, steps.capacities);
  (void)cache.run(steps.history, random_numbers());
  EXPECT_TRUE(within_bounds(expected, cache.run(steps.step, random_numbers()),
                            shape_of(expected.size(), shape)));
  EXPECT_TRUE(cache.bytes() == reference.bytes());
}

// ptxas 13.0 may give registers away that a product under way still reads: integers tell.
TEST(AttentionPrefillCuda, PicksKeysExactlyAtAllLengths) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const AttentionShape& shape :
       {AttentionShape{2, 1, 64, 64, 0}, {4, 1, 128, 128, 0}, {3, 1, 128, 32, 0}}) {
    for (int turn = 0; turn < kTurns; ++turn) {
      const TwoSteps steps = mixed_steps(turn, DType::BF16);
      const Numbers numbers = kinds_of_keys(0.5F);
      Int4Cache cpu(*setups.back().backend, shape, steps.capacities);
      (void)cpu.run(steps.history, numbers);
      const std::vector<float> expected = cpu.run(steps.step, numbers);
      Int4Cache cache(*gpu, shape, steps.capacities);
      (void)cache.run(steps.history, numbers);
      const std::vector<float> actual = turn == 0
                                            ? run_askew(*gpu, cache, shape, steps.step, numbers)
                                            : cache.run(steps.step, numbers);
      EXPECT_TRUE(same_bits(expected, actual, shape_of(expected.size(), shape)))
          << name_of(shape) << ", turn " << turn;
      EXPECT_TRUE(cache.bytes() == cpu.bytes()) << name_of(shape) << ", turn " << turn;
    }
  }
}

TEST(AttentionPrefillCuda, StaysWithinTheBoundAtAllLengths) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  for (int turn = 0; turn < kTurns; ++turn) {
    const AttentionShape shape =
        turn % 2 == 0 ? AttentionShape{2, 1, 64, 32, 0} : AttentionShape{1, 1, 128, 128, 0};
    const TwoSteps steps = mixed_steps(turn, DType::F16);
    Int4CacheReference reference(shape, steps.capacities);
    reference.store(steps.history, random_numbers(1.5F));
    const std::vector<Bounded> expected =
        reference.run_bounded(steps.step, random_numbers(1.5F), SumOrder::Tiles, is_sampled);
    Int4Cache cache(*gpu, shape, steps.capacities);
    (void)cache.run(steps.history, random_numbers(1.5F));
    EXPECT_TRUE(within_bounds(expected, cache.run(steps.step, random_numbers(1.5F)),
                              shape_of(expected.size(), shape)))
        << "turn " << turn;
  }
}

// A pass alone and in a pack of all lengths.
TEST(AttentionPrefillCuda, GivesTheSameBitsInAMixedPack) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  const AttentionShape shape = {4, 1, 128, 128, 0};
  const TwoSteps steps = mixed_steps(0, DType::F16);
  Int4Cache together(*gpu, shape, steps.capacities);
  (void)together.run(steps.history, random_numbers());
  const std::vector<float> all = together.run(steps.step, random_numbers());
  std::size_t first = 0;
  for (const Pass& pass : steps.step.passes) {
    Int4Cache alone(*gpu, shape, steps.capacities);
    if (pass.begin > 0) {
      (void)alone.run({{{pass.sequence, 0, pass.begin}}, DType::BF16, DType::F16, {}},
                      random_numbers());
    }
    const std::vector<float> own =
        alone.run({{pass}, DType::BF16, DType::F16, {}}, random_numbers());
    EXPECT_TRUE(
        same_bits(std::span(all).subspan(first, own.size()), own, shape_of(own.size(), shape)))
        << pass.tokens << " tokens behind " << pass.begin;
    first += own.size();
  }
}

// The bounds would not be worth much if a wrong nibble or a missing minimum stayed within them.
TEST(AttentionPrefillCuda, FaultsOfTheReferenceShow) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  const AttentionShape shape = {4, 1, 128, 64, 0};
  const AttentionStep history = {{{0, 0, 90}}, DType::BF16, DType::BF16, {}};
  const AttentionStep step = {{{0, 90, 3}}, DType::BF16, DType::F16, {}};
  Int4Cache cache(*gpu, shape, {93});
  (void)cache.run(history, random_numbers());
  const std::vector<float> actual = cache.run(step, random_numbers());
  for (const Fault fault : {Fault::None, Fault::NoMinimum, Fault::OtherNibble}) {
    Int4CacheReference reference(shape, {93}, fault);
    reference.store(history, random_numbers());
    const std::vector<Bounded> expected =
        reference.run_bounded(step, random_numbers(), SumOrder::Tiles);
    EXPECT_EQ(fault == Fault::None,
              bool(within_bounds(expected, actual, shape_of(actual.size(), shape))))
        << static_cast<int>(fault);
  }
}

// Prompts in passes of any length, sequences that come and go, others untouched.
TEST(AttentionPrefillCuda, StoresTheBytesOfTheContractStepAfterStep) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  for (const AttentionShape& shape : shapes()) {
    const std::vector<int> capacities = {63, 64, 65, 150, 33, 20};
    const std::vector<AttentionStep> steps = {
        {{{0, 0, 30}, {1, 0, 64}, {2, 0, 64}, {3, 0, 66}}, DType::BF16, DType::BF16, {}},
        {{{3, 66, 62}, {0, 30, 33}, {2, 64, 1}, {4, 0, 31}}, DType::BF16, DType::F16, {}},
        {{{4, 31, 2}, {3, 128, 22}}, DType::BF16, DType::BF16, {}}};
    Int4Cache cache(*gpu, shape, capacities);
    Int4CacheReference reference(shape, capacities);
    for (const AttentionStep& step : steps) {
      (void)cache.run(step, random_numbers());
      reference.store(step, random_numbers());
      EXPECT_TRUE(cache.bytes() == reference.bytes()) << name_of(shape);
    }
  }
}

// Zeros of either sign, groups without a range, numbers beyond FP16, ties between codes.
TEST(AttentionPrefillCuda, StoresTheBytesOfTheContractAtTheEdgeOfNumbers) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  const Numbers random = random_numbers();
  const std::vector<Numbers> kinds = {
      [&](Operand o, int s, int i, int h, int d) {
        return random(o, s, i, h, d) > 0 ? 0.0F : -0.0F;
      },
      [&](Operand, int, int, int, int) { return -3.0F; },
      [&](Operand o, int s, int i, int h, int d) { return 1e7F * random(o, s, i, h, d); },
      [&](Operand o, int s, int i, int h, int d) { return 1e-9F * random(o, s, i, h, d); },
      [&](Operand o, int s, int i, int h, int d) {
        return d % 32 == 0 ? 30.0F : std::clamp(std::round(8 * random(o, s, i, h, d)), 0.0F, 30.0F);
      }};
  for (const AttentionShape& shape : {AttentionShape{1, 1, 64, 32, 0}, {1, 1, 128, 128, 0}}) {
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      Int4Cache cache(*gpu, shape, {90});
      Int4CacheReference reference(shape, {90});
      for (const Pass& pass : {Pass{0, 0, 37}, Pass{0, 37, 53}}) {
        const AttentionStep step = {{pass}, DType::BF16, DType::BF16, {}};
        (void)cache.run(step, kinds[kind]);
        reference.store(step, kinds[kind]);
      }
      EXPECT_TRUE(cache.bytes() == reference.bytes()) << name_of(shape) << ", kind " << kind;
    }
  }
}

TEST(AttentionPrefillCuda, GivesTheSameBitsAloneAndInCompanyOverCodes) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  const AttentionShape shape = {4, 1, 128, 128, 0};
  const AttentionStep history = {{{0, 0, 75}}, DType::BF16, DType::F16, {}};
  const AttentionStep step = {{{0, 75, 50}}, DType::BF16, DType::F16, {}};
  Int4Cache alone(*gpu, shape, {125});
  (void)alone.run(history, random_numbers());
  const std::vector<float> expected = alone.run(step, random_numbers());
  Int4Cache together(*gpu, shape, {125, 70, 300});
  (void)together.run({{{1, 0, 20}, {0, 0, 75}, {2, 0, 290}}, DType::BF16, DType::F16, {}},
                     random_numbers());
  const std::vector<float> actual = together.run(
      {{{1, 20, 50}, {0, 75, 50}, {2, 290, 1}}, DType::BF16, DType::F16, {}}, random_numbers());
  EXPECT_TRUE(same_bits(expected, std::span(actual).subspan(50 * 512, 50 * 512), {50, 512}));
}

// A prompt's last token may come alone: that is prefill, too, by its types.
TEST(AttentionPrefillCuda, TakesATokenASequence) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  const AttentionShape shape = {4, 1, 64, 32, 0};
  const AttentionStep history = {{{0, 0, 75}, {1, 0, 31}}, DType::BF16, DType::BF16, {}};
  const AttentionStep step = {{{0, 75, 1}, {1, 31, 1}, {2, 0, 1}}, DType::BF16, DType::F16, {}};
  Int4CacheReference reference(shape, {76, 32, 1});
  reference.store(history, random_numbers());
  const std::vector<Bounded> expected =
      reference.run_bounded(step, random_numbers(), SumOrder::Tiles);
  Int4Cache cache(*gpu, shape, {76, 32, 1});
  (void)cache.run(history, random_numbers());
  EXPECT_TRUE(within_bounds(expected, cache.run(step, random_numbers()), {3, shape.q_cols()}));
  EXPECT_TRUE(cache.bytes() == reference.bytes());
}

TEST(AttentionPrefillCuda, RowsThatLieAskewGiveTheSameBits) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  for (const AttentionShape& shape : {AttentionShape{4, 2, 128, 64, 0}, {2, 2, 64, 32, 0}}) {
    Int4Cache straight(*gpu, shape, {150, 90});
    Int4Cache askew(*gpu, shape, {150, 90});
    for (const AttentionStep& step :
         {AttentionStep{{{0, 0, 83}, {1, 0, 40}}, DType::BF16, DType::F16, {}},
          AttentionStep{{{1, 40, 50}, {0, 83, 67}}, DType::BF16, DType::F16, {}}}) {
      const std::vector<float> expected = straight.run(step, random_numbers());
      const std::vector<float> actual = run_askew(*gpu, askew, shape, step, random_numbers());
      EXPECT_TRUE(same_bits(expected, actual, shape_of(expected.size(), shape)));
      EXPECT_TRUE(straight.bytes() == askew.bytes());
    }
  }
}

// ---- what is refused -----------------------------------------------------------------------------

TEST(AttentionPrefillCuda, RefusesWhatItHasNoArithmeticFor) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  Int4Cache cache(*gpu, {2, 1, 64, 64, 0}, {40});
  EXPECT_THROW((void)cache.run({{{0, 0, 3}}, DType::F32, DType::BF16, {}}, random_numbers()),
               Error);
  const DenseAttention c = dense({{3, 3}}, 2, 1, 16, DType::BF16, DType::BF16);
  EXPECT_THROW((void)c.run(*gpu, c.queries()), Error);
}

}  // namespace
}  // namespace fut::test
