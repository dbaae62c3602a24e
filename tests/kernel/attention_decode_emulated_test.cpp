// Attention of a decode step on the GPU, its own source, on the CPU (tests/emulator): a cache that begins as
// NaN, every way to hand out the work, rings that are filled again and again. Derived bounds, the CPU's bits in
// all that is stored, and a sequence's own bits whatever else is in the batch and in whatever order turns are taken and
// copies arrive.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/cuda/attention_decode.cuh"
#include "kernels/numeric/formats.h"
#include "tests/support/backends.h"
#include "tests/support/dense_attention.h"
#include "tests/support/far_cache.h"
#include "tests/support/int4_cache.h"

namespace fut::test {
namespace {

using cuda::AttentionDistribution;

std::string name_of(const AttentionDistribution& d) {
  return fmt::format("clusters of {}, rings of {}", d.cluster, d.slots);
}

template <int D, int kGroups>
std::string emulate(const cuda::AttentionDecodeArgs& args, const emulator::Launch& launch) {
  return emulator::run(
      launch, [&](std::uint8_t* shared) { cuda::AttentionDecode<D, kGroups>(args, shared).run(); });
}

std::string emulate(int head_dim, int groups, const cuda::AttentionDecodeArgs& args,
                    const emulator::Launch& launch) {
  if (head_dim == 64) {
    if (groups == 0) return emulate<64, 0>(args, launch);
    return groups == 1 ? emulate<64, 1>(args, launch) : emulate<64, 2>(args, launch);
  }
  return groups == 0 ? emulate<128, 0>(args, launch) : emulate<128, 1>(args, launch);
}

void attend(const AttentionArgs& a, AttentionDistribution d, std::uint32_t seed) {
  const auto* int4 = std::get_if<KvPagesInt4>(&a.kv);
  const int groups = int4 == nullptr ? 0 : int4->page.num_groups();
  const auto layout = [&] {
    return cuda::attention_layout(a.head_dim, groups, a.num_q_heads / a.num_kv_heads, d);
  };
  while (layout().bytes > cuda::kMaxSharedBytes) d.slots /= 2;
  std::uint64_t saturations[2] = {};
  cuda::AttentionDecodeArgs args = cuda::attention_decode_args(a, d, saturations);
  args.layout = layout();
  emulator::Launch launch;
  launch.blocks_in_row = d.cluster * a.num_kv_heads;
  launch.num_blocks = launch.blocks_in_row * a.batch.num_sequences;
  launch.cluster = d.cluster;
  launch.threads = 32 * cuda::kAttentionWarps;
  launch.shared_bytes = args.layout.bytes;
  launch.seed = seed;
  ASSERT_EQ(emulate(a.head_dim, groups, args, launch), "") << name_of(d) << ", seed " << seed;
}

constexpr AttentionDistribution kDistributions[] = {{1, 2}, {1, 8}, {2, 4}, {4, 2},
                                                    {4, 8}, {8, 2}, {8, 8}};

AttentionStep decode_step(std::vector<Pass> passes) {
  return {std::move(passes), DType::F32, DType::F16, {}};
}

// One token behind `length` - 1 others, in every distribution; what is left behind is compared as well.
void expect_decode(const AttentionShape& shape, int length, std::uint32_t seed, bool in_bounds) {
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups.back().backend;
  const Numbers numbers = random_numbers();
  Int4CacheReference reference(shape, {length});
  if (length > 1) reference.store({{{0, 0, length - 1}}, DType::F32, DType::F16, {}}, numbers);
  const Int4CacheBytes before = reference.bytes();
  const AttentionStep step = decode_step({{0, length - 1, 1}});
  std::vector<Bounded> bounds;
  if (in_bounds) {
    bounds = reference.run_bounded(step, numbers);
  } else {
    reference.store(step, numbers);
  }
  std::vector<float> expected;
  for (const AttentionDistribution& d : kDistributions) {
    Int4Cache cache(backend, shape, {length});
    cache.overwrite(before);
    cache.use([&](const AttentionArgs& a) { attend(a, d, seed); });
    const std::vector<float> out = cache.run(step, numbers);
    ++seed;
    if (expected.empty()) {
      expected = out;
      if (in_bounds) {
        EXPECT_TRUE(within_bounds(bounds, out, {1, shape.q_cols()})) << "length " << length;
      }
    }
    EXPECT_TRUE(same_bits(expected, out, {1, shape.q_cols()}))
        << "length " << length << ", " << name_of(d);
    EXPECT_TRUE(cache.bytes() == reference.bytes()) << "length " << length;
  }
}

TEST(AttentionDecodeEmulated, GivesOneResultHoweverTheWorkIsHandedOut) {
  std::uint32_t seed = 0;
  for (const int length : {1, 2, 16, 17, 32, 33, 80, 300, 1040}) {
    expect_decode({4, 1, 64, 64, 64}, length, seed, true);
    seed += 9;
  }
}

TEST(AttentionDecodeEmulated, TakesEveryShape) {
  std::uint32_t seed = 0;
  for (const AttentionShape& shape : {AttentionShape{4, 1, 128, 128, 128},
                                      {8, 1, 64, 32, 0},
                                      {6, 2, 64, 64, 16},
                                      {16, 2, 128, 128, 128},
                                      {1, 1, 64, 32, 2}}) {
    expect_decode(shape, 275 + static_cast<int>(seed % 30), seed, true);
    seed += 9;
  }
}

// Every warp has more blocks than its ring, and those of a block alone more pages than they know at a time.
TEST(AttentionDecodeEmulated, GoesOverLongSequences) {
  for (const int length : {12304, 17000}) {
    expect_decode({2, 1, 64, 64, 64}, length, static_cast<std::uint32_t>(length), false);
  }
}

// Position 65,569, in pages and slots with more than 2^32 bytes before them.
TEST(AttentionDecodeEmulated, FindsPagesAndSlotsFarBehindTheFirst) {
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups.back().backend;
  const AttentionShape shape = {2, 1, 64, 64, 64};
  const Numbers numbers = random_numbers();
  for (const int length : {300, 65536 + 33}) {
    Int4CacheReference reference(shape, {length});
    reference.store({{{0, 0, length - 1}}, DType::F32, DType::F16, {}}, numbers);
    const Int4CacheBytes before = reference.bytes();
    const AttentionStep step = decode_step({{0, length - 1, 1}});
    const std::vector<Bounded> bounds = reference.run_bounded(step, numbers);
    Int4Cache cache(backend, shape, {length});
    cache.overwrite(before);
    cache.use([&](const AttentionArgs& near) {
      with_far_cache(near, [&](const AttentionArgs& far) { attend(far, {8, 8}, 3); });
    });
    EXPECT_TRUE(within_bounds(bounds, cache.run(step, numbers), {1, shape.q_cols()})) << length;
    EXPECT_TRUE(cache.bytes() == reference.bytes()) << length;
  }
}

TEST(AttentionDecodeEmulated, GivesTheSameBitsAloneAndAmongOthers) {
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups.back().backend;
  const AttentionShape shape = {8, 2, 64, 64, 64};
  const Numbers numbers = random_numbers();
  const std::vector<int> lengths = {40, 1, 129, 16, 300};
  AttentionStep history = decode_step({});
  AttentionStep step = decode_step({});
  for (int s = 0; s < 5; ++s) {
    const int length = lengths[static_cast<std::size_t>(s)];
    if (length > 1) history.passes.push_back({s, 0, length - 1});
    step.passes.push_back({s, length - 1, 1});
  }
  Int4CacheReference reference(shape, lengths);
  reference.store(history, numbers);
  const auto run = [&](const AttentionStep& some, const AttentionDistribution& d) {
    Int4Cache cache(backend, shape, lengths);
    cache.overwrite(reference.bytes());
    cache.use([&](const AttentionArgs& a) { attend(a, d, 7); });
    return cache.run(some, numbers);
  };
  const std::vector<float> all = run(step, {1, 2});
  std::vector<float> apart;
  for (const Pass& pass : step.passes) {
    const std::vector<float> one = run(decode_step({pass}), {8, 4});
    apart.insert(apart.end(), one.begin(), one.end());
  }
  EXPECT_TRUE(same_bits(apart, all, {5, shape.q_cols()}));
}

TEST(AttentionDecodeEmulated, ReadsBf16PagesWithinBounds) {
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const DType out : {DType::F16, DType::BF16}) {
    DenseAttention c = {{{1, 1}, {1, 17}, {1, 200}}, 4, 1, out == DType::F16 ? 64 : 128};
    c.cache = DType::BF16;
    c.in = DType::BF16;
    c.out = out;
    const std::vector<float> q = c.queries();
    std::vector<float> expected;
    for (const AttentionDistribution& d : kDistributions) {
      const std::vector<float> result =
          c.run(*setups.back().backend, q, [&](const AttentionArgs& a) { attend(a, d, 3); });
      if (expected.empty()) {
        expected = result;
        EXPECT_TRUE(within_bounds(c.bounds(q), result, c.shape()));
      }
      EXPECT_TRUE(same_bits(expected, result, c.shape()));
    }
  }
}

}  // namespace
}  // namespace fut::test
