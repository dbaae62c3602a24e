// Attention of a decode step on the GPU, its own source, on the CPU (tests/emulator): a cache that begins as
// NaN, every way to hand out the work, rings that are filled again and again. Derived bounds, the CPU's bits in
// all that is stored, and a sequence's own bits whatever else is in the batch and in whatever order turns are taken and
// copies arrive.
#include <algorithm>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "kernels/cuda/attention_decode.cuh"
#include "kernels/numeric/formats.h"
#include "tests/support/backends.h"
#include "tests/support/dense_attention.h"
#include "tests/support/far_cache.h"
#include "tests/support/int4_cache.h"

namespace fut::test {
namespace {

using cuda::AttentionDistribution;

using cuda::AttentionMeeting;

std::string name_of(const AttentionDistribution& d) {
  const bool in_cluster = d.meeting == AttentionMeeting::Cluster;
  return fmt::format("{} blocks in {}, rings of {}", d.blocks, in_cluster ? "clusters" : "memory",
                     d.slots);
}

template <int D, int kGroups, AttentionMeeting kMeeting>
std::string emulate(const cuda::AttentionDecodeArgs& args, const emulator::Launch& launch) {
  return emulator::run(launch, [&](std::uint8_t* shared) {
    cuda::AttentionDecode<D, kGroups, kMeeting>(args, shared).run();
  });
}

template <AttentionMeeting kMeeting>
std::string emulate(int head_dim, int groups, const cuda::AttentionDecodeArgs& args,
                    const emulator::Launch& launch) {
  if (head_dim == 64) {
    if (groups == 0) return emulate<64, 0, kMeeting>(args, launch);
    return groups == 1 ? emulate<64, 1, kMeeting>(args, launch)
                       : emulate<64, 2, kMeeting>(args, launch);
  }
  return groups == 0 ? emulate<128, 0, kMeeting>(args, launch)
                     : emulate<128, 1, kMeeting>(args, launch);
}

// Scratch memory as another launch left it: states of whatever, nobody counted.
class Scratch {
 public:
  Scratch(const AttentionArgs& a, const AttentionDistribution& d,
          const cuda::AttentionLayout& layout)
      : arrivals_(static_cast<std::size_t>(a.num_kv_heads * a.batch.num_sequences)),
        parts_(arrivals_.size() * static_cast<std::size_t>(d.blocks * layout.slot_bytes / 4),
               std::numeric_limits<float>::quiet_NaN()),
        parked_(parts_.size() * static_cast<std::size_t>(cuda::kAttentionWarps * layout.parked),
                std::numeric_limits<float>::quiet_NaN()) {}

  [[nodiscard]] cuda::AttentionScratch places() {
    return {reinterpret_cast<std::uint8_t*>(parts_.data()),
            reinterpret_cast<std::uint8_t*>(parked_.data()), arrivals_.data()};
  }
  [[nodiscard]] bool nobody_is_counted() const {
    return arrivals_ == std::vector<unsigned>(arrivals_.size());
  }

 private:
  std::vector<unsigned> arrivals_;
  std::vector<float> parts_, parked_;
};

void attend(const AttentionArgs& a, const AttentionDistribution& wanted, std::uint32_t seed) {
  const auto* int4 = std::get_if<KvPagesInt4>(&a.kv);
  const int groups = int4 == nullptr ? 0 : int4->page.num_groups();
  const int heads = a.num_q_heads / a.num_kv_heads;
  const AttentionDistribution d = cuda::fitting_distribution(a.head_dim, groups, heads, wanted);
  std::uint64_t saturations[2] = {};
  cuda::AttentionDecodeArgs args = cuda::attention_decode_args(a, d, saturations);
  args.layout = cuda::attention_layout(a.head_dim, groups, heads, d);
  Scratch scratch(a, d, args.layout);
  args.scratch = scratch.places();
  emulator::Launch launch;
  launch.blocks_in_row = d.blocks * a.num_kv_heads;
  launch.num_blocks = launch.blocks_in_row * a.batch.num_sequences;
  // Blocks that meet in memory may run at the same time, or one after the other from either end.
  const bool in_cluster = d.meeting == AttentionMeeting::Cluster;
  launch.cluster = in_cluster || seed % 3 == 0 ? d.blocks : 1;
  launch.backwards = seed % 3 == 1;
  launch.threads = 32 * cuda::kAttentionWarps;
  launch.shared_bytes = args.layout.bytes;
  launch.seed = seed;
  const std::string error =
      in_cluster ? emulate<AttentionMeeting::Cluster>(a.head_dim, groups, args, launch)
                 : emulate<AttentionMeeting::Memory>(a.head_dim, groups, args, launch);
  ASSERT_EQ(error, "") << name_of(d) << ", seed " << seed;
  EXPECT_TRUE(scratch.nobody_is_counted()) << name_of(d) << ", seed " << seed;
}

constexpr AttentionDistribution kDistributions[] = {{1, 2},
                                                    {1, 8},
                                                    {2, 4},
                                                    {4, 2},
                                                    {4, 8},
                                                    {8, 2},
                                                    {8, 8},
                                                    {2, 2, AttentionMeeting::Memory},
                                                    {4, 4, AttentionMeeting::Memory},
                                                    {8, 8, AttentionMeeting::Memory},
                                                    {16, 4, AttentionMeeting::Memory}};

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
// Up to 1023 blocks of keys a sequence is a short one, from 1024 on it has more splits.
TEST(AttentionDecodeEmulated, GoesOverLongSequences) {
#ifdef FUT_SANITIZED  // ten times as slow
  const int lengths[] = {16369};
#else
  const int lengths[] = {16368, 16369, 17000};
#endif
  for (const int length : lengths) {
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
    std::vector<float> expected;
    for (const AttentionDistribution& d :
         {AttentionDistribution{8, 8}, {16, 4, AttentionMeeting::Memory}}) {
      Int4Cache cache(backend, shape, {length});
      cache.overwrite(before);
      cache.use([&](const AttentionArgs& near) {
        with_far_cache(near, [&](const AttentionArgs& far) { attend(far, d, 3); });
      });
      const std::vector<float> out = cache.run(step, numbers);
      if (expected.empty()) expected = out;
      EXPECT_TRUE(within_bounds(bounds, out, {1, shape.q_cols()})) << length;
      EXPECT_TRUE(same_bits(expected, out, {1, shape.q_cols()})) << length;
      EXPECT_TRUE(cache.bytes() == reference.bytes()) << length;
    }
  }
}

// Whoever else there is, short or long, and wherever blocks meet.
TEST(AttentionDecodeEmulated, GivesTheSameBitsAloneAndAmongOthers) {
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups.back().backend;
  const AttentionShape shape = {8, 2, 64, 64, 64};
  const Numbers numbers = random_numbers();
  const std::vector<int> lengths = {40, 1, 129, 16, 300, 16390};
  AttentionStep history = decode_step({});
  AttentionStep step = decode_step({});
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    const auto sequence = static_cast<int>(s);
    if (lengths[s] > 1) history.passes.push_back({sequence, 0, lengths[s] - 1});
    step.passes.push_back({sequence, lengths[s] - 1, 1});
  }
  Int4CacheReference reference(shape, lengths);
  reference.store(history, numbers);
  const auto run = [&](const AttentionStep& some, const AttentionDistribution& d) {
    Int4Cache cache(backend, shape, lengths);
    cache.overwrite(reference.bytes());
    cache.use([&](const AttentionArgs& a) { attend(a, d, 7); });
    return cache.run(some, numbers);
  };
  std::vector<float> apart;
  for (const Pass& pass : step.passes) {
    const std::vector<float> one = run(decode_step({pass}), {8, 4});
    apart.insert(apart.end(), one.begin(), one.end());
  }
  const Shape outputs = {static_cast<std::int64_t>(lengths.size()), shape.q_cols()};
  for (const AttentionDistribution& d : {AttentionDistribution{1, 2},
                                         {4, 4},
                                         {4, 4, AttentionMeeting::Memory},
                                         {16, 4, AttentionMeeting::Memory}}) {
    EXPECT_TRUE(same_bits(apart, run(step, d), outputs)) << name_of(d);
  }
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

TEST(AttentionDecodeEmulated, ReadsLongBf16Sequences) {
  const std::vector<CpuSetup> setups = cpu_setups();
  DenseAttention c = {{{1, 16369}, {1, 33}}, 2, 1, 64};
  c.cache = DType::BF16;
  c.in = DType::BF16;
  c.out = DType::F16;
  const std::vector<float> q = c.queries();
  std::vector<float> expected;
  for (const AttentionDistribution& d : {AttentionDistribution{1, 2},
                                         {8, 8},
                                         {4, 2, AttentionMeeting::Memory},
                                         {16, 4, AttentionMeeting::Memory}}) {
    const std::vector<float> result =
        c.run(*setups.back().backend, q, [&](const AttentionArgs& a) { attend(a, d, 4); });
    if (expected.empty()) {
      expected = result;
      EXPECT_TRUE(within_bounds(c.bounds(q), result, c.shape()));
    }
    EXPECT_TRUE(same_bits(expected, result, c.shape())) << name_of(d);
  }
}

// ---- who gets what -----------------------------------------------------------------------------

using cuda::AttentionContexts;

// An H200's.
constexpr cuda::Int4GemmMachine kMachine = {.num_multiprocessors = 132,
                                            .max_clusters_of_2 = 66,
                                            .max_clusters_of_4 = 30,
                                            .max_clusters_of_8 = 15};

TEST(AttentionDecodePlan, LongContextsGetAllOfTheChip) {
  for (int items = 1; items <= 8 * 32; ++items) {
    for (const int heads : {1, 4, 8}) {
      const auto of_short =
          cuda::plan_attention_decode(items, heads, AttentionContexts::Short, kMachine);
      const auto of_long =
          cuda::plan_attention_decode(items, heads, AttentionContexts::Long, kMachine);
      EXPECT_EQ(of_short.meeting, AttentionMeeting::Cluster);
      EXPECT_EQ(cuda::attention_meeting(items, AttentionContexts::Short, kMachine),
                of_short.meeting);
      EXPECT_EQ(cuda::attention_meeting(items, AttentionContexts::Long, kMachine), of_long.meeting);
      EXPECT_GE(of_long.blocks, of_short.blocks) << items;
      if (of_long.meeting == AttentionMeeting::Cluster) {
        EXPECT_EQ(of_long.blocks, of_short.blocks);
        EXPECT_EQ(of_long.slots, of_short.slots);
        continue;
      }
      EXPECT_LE(of_long.blocks, cuda::kMaxAttentionBlocks);
      EXPECT_LE(of_long.blocks * items, kMachine.num_multiprocessors);
      EXPECT_TRUE(of_long.blocks == cuda::kMaxAttentionBlocks ||
                  2 * of_long.blocks * items > kMachine.num_multiprocessors)
          << items;
    }
  }
  const auto of_8b = cuda::plan_attention_decode(8, 4, AttentionContexts::Long, kMachine);
  EXPECT_EQ(of_8b.meeting, AttentionMeeting::Memory);
  EXPECT_EQ(of_8b.blocks, 16);
  // Batches of 8 KV heads that a step is recorded twice for.
  std::vector<int> twice;
  for (int batch = 1; batch <= 32; ++batch) {
    if (cuda::attention_meeting(8 * batch, AttentionContexts::Long, kMachine) ==
        AttentionMeeting::Memory) {
      twice.push_back(batch);
    }
  }
  EXPECT_EQ(twice, (std::vector{1, 2, 4}));
}

// Two blocks of a batch of short sequences still share a multiprocessor: what long ones need besides is elsewhere.
TEST(AttentionDecodePlan, StacksOfLongSequencesTakeNoSharedMemory) {
  for (const int blocks : {1, 2, 4, 8}) {
    const AttentionDistribution d = {blocks, 2};
    const cuda::AttentionLayout layout = cuda::attention_layout(128, 1, 4, d);
    EXPECT_GE(layout.slots + layout.parked, d.warp_levels(layout::kLog2LongKvSplits)) << blocks;
    EXPECT_EQ(layout.slots, std::max(d.warp_levels(layout::kLog2KvSplits), 1)) << blocks;
    EXPECT_LE(layout.bytes, 113 * 1024) << blocks;
  }
}

// What fits no block gets shorter rings first, then more blocks, of either kind.
TEST(AttentionDecodePlan, EveryShapeFits) {
  for (const AttentionMeeting meeting : {AttentionMeeting::Cluster, AttentionMeeting::Memory}) {
    for (int blocks = meeting == AttentionMeeting::Memory ? 2 : 1; blocks <= 8; blocks *= 2) {
      for (const int head_dim : {64, 128}) {
        for (int groups = 0; groups <= head_dim / 32; ++groups) {
          if (groups == 3) continue;
          const auto d = cuda::fitting_distribution(head_dim, groups, 8, {blocks, 8, meeting});
          EXPECT_LE(cuda::attention_layout(head_dim, groups, 8, d).bytes, cuda::kMaxSharedBytes);
          EXPECT_LE(d.blocks, meeting == AttentionMeeting::Memory ? cuda::kMaxAttentionBlocks
                                                                  : cuda::kMaxAttentionCluster);
          EXPECT_GE(d.slots, 2);
        }
      }
    }
  }
}

}  // namespace
}  // namespace fut::test
