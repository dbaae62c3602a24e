// attention for one token of each sequence on the GPU: within the derived bounds of the contract at
// every length, the CPU's bits where sums are exact and in all that is stored, and a sequence's own bits
// whatever else is in the batch and however the work is handed out. Pages and rows begin as NaN.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <memory>
#include <utility>

#include "kernels/numeric/formats.h"
#include "tests/support/dense_attention.h"
#include "tests/support/int4_cache.h"

#if FUT_CUDA
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/cuda_backend.h"
#endif

namespace fut::test {
namespace {

#if FUT_CUDA

// The shape of Llama-3.1-8B first; all ratios of heads, all groups of dims, blocks of rotation.
const std::vector<AttentionShape>& shapes() {
  static const std::vector<AttentionShape> all = {
      {4, 1, 128, 128, 128}, {8, 1, 128, 64, 32}, {2, 1, 128, 32, 64}, {6, 2, 64, 32, 0},
      {2, 2, 64, 64, 64},    {1, 1, 64, 32, 2},   {3, 1, 128, 32, 16}, {8, 1, 64, 64, 4}};
  return all;
}

std::string name_of(const AttentionShape& s) {
  return fmt::format("{}/{} heads of {}, groups of {}, rotation {}", s.num_q_heads, s.num_kv_heads,
                     s.head_dim, s.kv_group, s.rotation_block);
}

AttentionStep decode_step(std::vector<Pass> passes, DType out = DType::F16) {
  return {std::move(passes), DType::F32, out, {}};
}

// A token at a time, outputs in bounds, and in the end the same cache.
void expect_decode(Backend& backend, const AttentionShape& shape, int length, DType out) {
  const Numbers numbers = random_numbers();
  Int4CacheReference reference(shape, {length});
  Int4Cache cache(backend, shape, {length});
  for (int position = 0; position < length; ++position) {
    const AttentionStep step = decode_step({{0, position, 1}}, out);
    const std::vector<Bounded> expected = reference.run_bounded(step, numbers);
    ASSERT_TRUE(within_bounds(expected, cache.run(step, numbers), {1, shape.q_cols()}))
        << name_of(shape) << ", position " << position;
    if (position % 16 == 15 || position + 1 == length) {
      ASSERT_TRUE(cache.bytes() == reference.bytes())
          << name_of(shape) << ", stored up to " << position;
    }
  }
}

TEST(AttentionCuda, DecodesWithinBoundsAtEveryLength) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  expect_decode(*backend, shapes().front(), 520, DType::F16);
}

TEST(AttentionCuda, DecodesWithinBoundsInEveryShape) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  for (const AttentionShape& shape : shapes()) expect_decode(*backend, shape, 82, DType::BF16);
}

// ---- exact sums --------------------------------------------------------------------------------

// A query of zeros weighs all values alike, and the values are whole steps that codes hold.
TEST(AttentionCuda, GivesTheBitsOfTheCpuWhereSumsAreExact) {
  FUT_REQUIRE_GPU_DEVICE();
  const Numbers numbers = [](Operand operand, int sequence, int position, int head, int dim) {
    if (operand == Operand::Query) return 0.0F;
    if (dim % 32 < 2) return dim % 32 == 0 ? -1.0F : 14.0F;
    const float random = random_numbers()(operand, sequence, position, head, dim);
    return std::clamp(std::round(7 + 4 * random), -1.0F, 14.0F);
  };
  const auto backend = gpu_backend();
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const AttentionShape& shape : shapes()) {
    for (const int length : {1, 2, 16, 32, 64, 256, 1024, 2048}) {
      Int4Cache cpu(*setups.back().backend, shape, {length});
      if (length > 1) {
        (void)cpu.run({{{0, 0, length - 1}}, DType::F32, DType::BF16, {}}, numbers);
      }
      Int4Cache cache(*backend, shape, {length});
      cache.overwrite(cpu.bytes());
      const AttentionStep step = decode_step({{0, length - 1, 1}});
      EXPECT_TRUE(same_bits(cpu.run(step, numbers), cache.run(step, numbers), {1, shape.q_cols()}))
          << name_of(shape) << ", length " << length;
      EXPECT_TRUE(cpu.bytes() == cache.bytes()) << name_of(shape) << ", length " << length;
    }
  }
}

// ---- numbers at the edge -----------------------------------------------------------------------

TEST(AttentionCuda, GroupsWithoutARangeAreSafe) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  const AttentionShape shape = {2, 1, 64, 32, 64};
  const Numbers zeros = [](Operand, int, int, int, int) { return 0.0F; };
  const Numbers constant = [](Operand operand, int, int, int, int) {
    return operand == Operand::Key ? -3.0F : 0.75F;
  };
  for (const auto& [numbers, value] : {std::pair(zeros, 0.0F), std::pair(constant, 0.75F)}) {
    Int4Cache cache(*backend, shape, {70});
    for (const float v : decode_tokens(cache, 70, numbers, DType::BF16)) ASSERT_EQ(v, value);
  }
}

// Keys and values beyond FP16's range lose their size, nothing else: no infinity, no NaN.
TEST(AttentionCuda, ParametersSaturate) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  const AttentionShape shape = {2, 1, 64, 64, 0};
  const Numbers random = random_numbers(1e-6F);
  const Numbers huge = [&](Operand operand, int sequence, int position, int head, int dim) {
    const float v = random(operand, sequence, position, head, dim);
    return operand == Operand::Query ? v : v * 1e7F;
  };
  Int4CacheReference reference(shape, {60});
  Int4Cache cache(*backend, shape, {60});
  const std::vector<float> expected = decode_tokens(reference, 60, huge, DType::F16);
  const std::vector<float> actual = decode_tokens(cache, 60, huge, DType::F16);
  for (const float v : actual) ASSERT_LE(std::fabs(v), 65504.0F);
  // Nearly all of these are at the end of the range, on both sides.
  const auto count = [](const std::vector<float>& values, float v) {
    return std::count(values.begin(), values.end(), v);
  };
  EXPECT_GT(count(expected, 65504.0F), 0);
  EXPECT_GT(count(actual, 65504.0F), 0);
  EXPECT_TRUE(cache.bytes() == reference.bytes());
}

TEST(AttentionCuda, GivesE4m3WithinBounds) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  const AttentionShape shape = {4, 2, 64, 64, 64};
  const AttentionStep history = {{{0, 0, 40}}, DType::F32, DType::BF16, {}};
  AttentionStep step = decode_step({{0, 40, 1}}, DType::E4M3);
  step.out_scales = {1.0F, 1.0F};
  Int4CacheReference reference(shape, {41});
  reference.store(history, random_numbers());
  Int4Cache cache(*backend, shape, {41});
  cache.overwrite(reference.bytes());
  const std::vector<Bounded> expected = reference.run_bounded(step, random_numbers());
  EXPECT_TRUE(within_bounds(expected, cache.run(step, random_numbers()), {1, shape.q_cols()}));
}

// ---- long sequences ----------------------------------------------------------------------------

// Keys of +-1 without a pattern. A query is 128 times one of them, so that all probability falls on
// that key: the output is its value, a small whole number that codes hold.
Numbers needles(std::function<int(int position, int head)> target) {
  return [target = std::move(target)](Operand operand, int, int position, int head, int dim) {
    const auto bits = [&](int of, std::uint32_t salt) {
      std::uint32_t h = static_cast<std::uint32_t>(of * 128 + dim) * 0x9E3779B1U + salt;
      h = (h ^ (h >> 15)) * 0x85EBCA6BU;
      return (h ^ (h >> 13)) * 0xC2B2AE35U >> 16;
    };
    const auto sign = [&](int of) { return bits(of, 77777) % 2 == 0 ? 1.0F : -1.0F; };
    if (operand == Operand::Key) return sign(position);
    if (operand == Operand::Query) return 128 * sign(target(position, head));
    if (dim < 2) return dim == 0 ? -1.0F : 14.0F;
    return static_cast<float>(bits(position, 99) % 16) - 1;
  };
}

// What a cache holds before the token at length - 1 comes: pages of `full`, which has all blocks, and
// the rows of this length.
Int4CacheBytes bytes_before(const Int4CacheReference& full, const AttentionShape& shape,
                            const RaggedArrays& whole, int length, const Numbers& numbers) {
  const layout::KvRawStore store{shape.num_kv_heads, shape.head_dim};
  Int4CacheBytes bytes = full.bytes();
  for (int position = 0; position < length - 1; ++position) {
    if (position == 16) position = std::max(16, (length - 1) / 16 * 16);
    if (position >= length - 1) break;
    for (const Operand operand : {Operand::Key, Operand::Value}) {
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        std::vector<float> row;
        for (int d = 0; d < shape.head_dim; ++d) {
          row.push_back(numbers(operand, 0, position, head, d));
        }
        row = rotated_and_rounded(row, operand == Operand::Key ? shape.rotation_block : 0);
        const auto part = operand == Operand::Key ? layout::KvPart::Key : layout::KvPart::Value;
        auto* place = bytes.raw.data() + whole.raw_slots[0] * store.elements() +
                      store.offset(part, head, position);
        for (const float v : row) *place++ = f32_to_bf16(v);
      }
    }
  }
  return bytes;
}

std::vector<int> long_lengths() {
  std::vector<int> lengths;
  for (int power = 512; power <= 131072; power *= 2) {
    lengths.insert(lengths.end(), {power - 1, power, power + 1});
  }
  lengths.pop_back();
  return lengths;
}

using cuda::AttentionMeeting;

constexpr cuda::AttentionDistribution kDistributions[] = {
    {1, 2}, {16, 4, AttentionMeeting::Memory}, {1, 8},
    {2, 2}, {8, 4, AttentionMeeting::Memory},  {2, 8},
    {4, 8}, {4, 2, AttentionMeeting::Memory},  {8, 4},
    {8, 8}, {2, 4, AttentionMeeting::Memory}};

std::string name_of(const cuda::AttentionDistribution& d) {
  const bool in_cluster = d.meeting == AttentionMeeting::Cluster;
  return fmt::format("{} blocks in {}, rings of {}", d.blocks, in_cluster ? "clusters" : "memory",
                     d.slots);
}

// The needle's value, whichever warps and blocks look for it, up to the longest context.
TEST(AttentionCuda, FindsNeedlesAtEveryLength) {
  FUT_REQUIRE_GPU_DEVICE();
  const AttentionShape shape = {4, 1, 128, 128, 0};
  const std::vector<int> lengths = long_lengths();
  const auto target = [](int position, int head) {
    const auto seed = static_cast<std::uint32_t>(position) * 2654435761U;
    if (head == 0) return position;
    if (head == 1) return static_cast<int>(seed % static_cast<std::uint32_t>(position + 1));
    return head == 2 ? position / 16 * 16 - 1 : 16 + position / 3;
  };
  const Numbers numbers = needles(target);
  cuda::CudaBackend backend(0);
  Int4CacheReference full(shape, {lengths.back()});
  full.store({{{0, 0, lengths.back()}}, DType::F32, DType::F16, {}}, numbers);
  Int4Cache cache(backend, shape, {lengths.back()});
  std::size_t turn = 0;
  for (const int length : lengths) {
    cache.overwrite(bytes_before(full, shape, cache.whole(), length, numbers));
    const cuda::AttentionDistribution distribution =
        kDistributions[turn++ % std::size(kDistributions)];
    cache.use([&](const AttentionArgs& a) {
      cuda::attention_decode(a, backend.context(), distribution);
    });
    const std::vector<float> out = cache.run(decode_step({{0, length - 1, 1}}), numbers);
    for (int head = 0; head < shape.num_q_heads; ++head) {
      const int key = target(length - 1, head);
      std::vector<float> value;
      for (int d = 0; d < shape.head_dim; ++d) {
        value.push_back(numbers(Operand::Value, 0, key, 0, d));
      }
      EXPECT_TRUE(same_bits(
          value, std::span(out).subspan(static_cast<std::size_t>(head) * 128, 128), {1, 128}))
          << "length " << length << ", key " << key << ", " << name_of(distribution);
    }
  }
}

// Random keys have no single answer: here the bounds of the sums themselves, up to the longest context.
TEST(AttentionCuda, StaysWithinBoundsAtEveryPowerOfTwo) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  const AttentionShape shape = {2, 1, 128, 128, 128};
  const std::vector<int> lengths = long_lengths();
  const Numbers numbers = random_numbers();
  Int4CacheReference reference(shape, {lengths.back()});
  Int4Cache cache(*backend, shape, {lengths.back()});
  int stored = 0;
  for (const int length : lengths) {
    if (stored < length - 1) {
      reference.store({{{0, stored, length - 1 - stored}}, DType::F32, DType::F16, {}}, numbers);
    }
    stored = length;
    cache.overwrite(reference.bytes());
    const AttentionStep step = decode_step({{0, length - 1, 1}});
    const std::vector<Bounded> bounds = reference.run_bounded(step, numbers);
    EXPECT_TRUE(within_bounds(bounds, cache.run(step, numbers), {1, shape.q_cols()}))
        << "length " << length;
  }
}

TEST(AttentionCuda, GivesTheSameBitsHoweverTheWorkIsHandedOut) {
  FUT_REQUIRE_GPU_DEVICE();
  cuda::CudaBackend backend(0);
  for (const AttentionShape& shape :
       {AttentionShape{4, 1, 128, 128, 128}, {8, 1, 64, 32, 0}, {8, 1, 128, 64, 32}}) {
    const Numbers numbers = random_numbers();
    // At the end a warp of a block alone has more pages than it knows at a time.
    constexpr int kCapacity = 17000;
    Int4CacheReference full(shape, {kCapacity});
    full.store({{{0, 0, kCapacity}}, DType::F32, DType::F16, {}}, numbers);
    Int4Cache cache(backend, shape, {kCapacity});
    for (const int length :
         {1, 17, 33, 100, 530, 1024, 1040, 2049, 4096, 4099, 16368, 16369, 16384, 16999}) {
      const Int4CacheBytes before = bytes_before(full, shape, cache.whole(), length, numbers);
      std::vector<float> expected;
      Int4CacheBytes after;
      for (const cuda::AttentionDistribution& distribution : kDistributions) {
        cache.use([&](const AttentionArgs& a) {
          cuda::attention_decode(a, backend.context(), distribution);
        });
        cache.overwrite(before);
        const std::vector<float> out = cache.run(decode_step({{0, length - 1, 1}}), numbers);
        const Int4CacheBytes bytes = cache.bytes();
        if (expected.empty()) {
          expected = out;
          after = bytes;
        }
        EXPECT_TRUE(same_bits(expected, out, {1, shape.q_cols()}))
            << name_of(shape) << ", length " << length << ", " << name_of(distribution);
        EXPECT_TRUE(bytes == after) << name_of(shape) << ", length " << length;
      }
      if (length != 2049) continue;
      Int4CacheReference reference = full;
      const std::vector<Bounded> bounds =
          reference.run_bounded(decode_step({{0, length - 1, 1}}), numbers);
      EXPECT_TRUE(within_bounds(bounds, expected, {1, shape.q_cols()})) << name_of(shape);
    }
  }
}

// ---- batches -----------------------------------------------------------------------------------

TEST(AttentionCuda, GivesTheSameBitsAloneAndAmongOthers) {
  FUT_REQUIRE_GPU_DEVICE();
  constexpr int kSequences = 32;
  const AttentionShape shape = {8, 2, 128, 128, 128};
  const Numbers numbers = random_numbers();
  std::vector<int> lengths, capacities;
  AttentionStep history;
  history.in = DType::F32;
  for (int s = 0; s < kSequences; ++s) {
    lengths.push_back(s % 4 == 0 ? 1 + s : 1 + s * 37 % 300);
    capacities.push_back(lengths.back() + s % 3);
    if (lengths.back() > 1) history.passes.push_back({s, 0, lengths.back() - 1});
  }
  Int4CacheReference reference(shape, capacities);
  reference.store(history, numbers);
  const auto backend = gpu_backend();
  Int4Cache cache(*backend, shape, capacities);
  const auto cols = static_cast<std::size_t>(shape.q_cols());
  std::vector<std::vector<float>> alone;
  cache.overwrite(reference.bytes());
  for (int s = 0; s < kSequences; ++s) {
    alone.push_back(
        cache.run(decode_step({{s, lengths[static_cast<std::size_t>(s)] - 1, 1}}), numbers));
  }
  const Int4CacheBytes all_stored = cache.bytes();
  for (const int batch : {1, 2, 3, 8, 31, 32}) {
    cache.overwrite(reference.bytes());
    AttentionStep step = decode_step({});
    for (int s = batch - 1; s >= 0; --s) {
      step.passes.push_back({s, lengths[static_cast<std::size_t>(s)] - 1, 1});
    }
    const std::vector<float> out = cache.run(step, numbers);
    for (int i = 0; i < batch; ++i) {
      const auto s = static_cast<std::size_t>(step.passes[static_cast<std::size_t>(i)].sequence);
      EXPECT_TRUE(same_bits(alone[s],
                            std::span(out).subspan(static_cast<std::size_t>(i) * cols, cols),
                            {1, shape.q_cols()}))
          << "sequence " << s << " of " << batch;
    }
    if (batch == kSequences) {
      EXPECT_TRUE(cache.bytes() == all_stored);
    }
  }
}

// One long sequence has all of a step's handed out otherwise: short ones beside it give the bits of a step
// of short ones, and the long one those that it has alone. Again and again, for what blocks count goes on from
// zero each time, and in batches of several sizes, which share scratch memory.
TEST(AttentionCuda, GivesTheSameBitsWhereverBlocksMeet) {
  FUT_REQUIRE_GPU_DEVICE();
  const AttentionShape shape = {8, 2, 128, 128, 128};
  const Numbers numbers = random_numbers();
  const std::vector<int> lengths = {17000, 40, 1, 129, 16, 300, 2049, 512};
  AttentionStep history = decode_step({});
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    if (lengths[s] > 1) history.passes.push_back({static_cast<int>(s), 0, lengths[s] - 1});
  }
  Int4CacheReference reference(shape, lengths);
  reference.store(history, numbers);
  cuda::CudaBackend backend(0);
  Int4Cache cache(backend, shape, lengths);
  const auto run = [&](int first, int count, int longest) {
    AttentionStep step = decode_step({});
    for (int s = first; s < first + count; ++s) {
      step.passes.push_back({s, lengths[static_cast<std::size_t>(s)] - 1, 1});
    }
    cache.overwrite(reference.bytes());
    return cache.run(step, numbers, [&](AttentionArgs& a) { a.batch.longest_context = longest; });
  };
  const auto cols = static_cast<std::size_t>(shape.q_cols());
  std::vector<float> alone;
  for (int s = 0; s < 8; ++s) {
    const std::vector<float> one = run(s, 1, 0);
    alone.insert(alone.end(), one.begin(), one.end());
  }
  for (int round = 0; round < 3; ++round) {
    for (const auto& [first, count] : {std::pair(0, 1), {0, 8}, {0, 2}, {3, 1}, {1, 7}, {0, 4}}) {
      for (const int longest : {0, cuda::kLongContext}) {
        const auto expected = std::span(alone).subspan(static_cast<std::size_t>(first) * cols,
                                                       static_cast<std::size_t>(count) * cols);
        EXPECT_TRUE(same_bits(expected, run(first, count, longest), {count, shape.q_cols()}))
            << count << " sequences from " << first << ", longest " << longest;
      }
    }
  }
}

// ---- a cache of BF16 ---------------------------------------------------------------------------

std::vector<DenseAttention> dense_cases(DType in, DType out) {
  const std::vector<SequenceShape> few = {{1, 1}, {1, 15}, {1, 16}, {1, 17}, {1, 64}, {1, 65}};
  std::vector<DenseAttention> all = {{few, 4, 1, 128},
                                     {{{1, 200}, {1, 1030}}, 8, 1, 64},
                                     {few, 6, 2, 64},
                                     {{{1, 300}}, 2, 2, 128},
                                     {{{1, 129}}, 2, 1, 128}};
  for (DenseAttention& c : all) {
    c.cache = DType::BF16;
    c.in = in;
    c.out = out;
    if (out == DType::E4M3) c.out_scales.assign(static_cast<std::size_t>(c.num_kv_heads), 1.0F);
  }
  return all;
}

TEST(AttentionCuda, ReadsBf16PagesWithinBounds) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = std::make_unique<cuda::CudaBackend>(0);
  for (const auto& [in, out] :
       {std::pair(DType::F32, DType::F16), std::pair(DType::BF16, DType::BF16),
        std::pair(DType::BF16, DType::E4M3)}) {
    for (const DenseAttention& c : dense_cases(in, out)) {
      const std::vector<float> q = c.queries();
      const std::vector<float> result = c.run(*backend, q);
      EXPECT_TRUE(within_bounds(c.bounds(q), result, c.shape()))
          << dtype_name(in) << " to " << dtype_name(out) << ", " << c.num_q_heads << "/"
          << c.num_kv_heads << " heads of " << c.head_dim;
      const std::vector<float> in_memory = c.run(*backend, q, [&](const AttentionArgs& a) {
        cuda::attention_decode(a, backend->context(), {16, 2, AttentionMeeting::Memory});
      });
      EXPECT_TRUE(same_bits(result, in_memory, c.shape()));
    }
  }
}

// The larger of two scales sends values past 448, and these alone are counted.
TEST(AttentionCuda, CountsWhatE4m3Clips) {
  FUT_REQUIRE_GPU_DEVICE();
  DenseAttention c = {{{1, 40}, {1, 41}}, 2,           2,           64,
                      DType::BF16,        DType::BF16, DType::E4M3, {8.0F, 8192.0F}};
  const std::vector<float> q = c.queries();
  DenseAttention wide = c;
  wide.out = DType::F16;
  wide.out_scales = {};
  const auto backend = gpu_backend();
  const std::vector<float> unscaled = wide.run(*backend, q);
  std::uint64_t least = 0;
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < unscaled.size(); ++i) {
    // F16 has eleven bits: numbers near the edge may be on either side of it.
    const float scaled = std::fabs(unscaled[i]) * c.out_scales[i / 64 % 2];
    least += scaled > 448.0F * (1 + 0x1p-10F) ? 1 : 0;
    most += scaled > 448.0F * (1 - 0x1p-10F) ? 1 : 0;
  }
  ASSERT_GT(least, 0U);
  const std::uint64_t before = backend->saturations().attention_outputs;
  for (const float v : c.run(*backend, q)) EXPECT_LE(std::fabs(v), 448.0F);
  const std::uint64_t counted = backend->saturations().attention_outputs - before;
  EXPECT_GE(counted, least);
  EXPECT_LE(counted, most);
}

#else

TEST(AttentionCuda, DecodesWithinBoundsAtEveryLength) {
  FUT_REQUIRE_GPU_DEVICE();
}

#endif

}  // namespace
}  // namespace fut::test
