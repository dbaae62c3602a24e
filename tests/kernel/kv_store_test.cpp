// What attention leaves behind in an INT4 cache: codes where the layout says, the same bytes however
// tokens were cut into passes, sinks and tail as raw rows, nothing else touched.
#include "kernels/cpu/kv_store.h"

#include <cstring>
#include <gtest/gtest.h>

#include "kernels/numeric/formats.h"
#include "kernels/numeric/kv_int4.h"
#include "tests/support/int4_cache.h"

namespace fut::test {
namespace {

using layout::KvPageInt4;
using layout::KvPart;

constexpr KvPart kParts[] = {KvPart::Key, KvPart::Value};

std::vector<KvPageInt4> pages() {
  return {{2, 64, 64}, {2, 64, 32}, {1, 128, 128}, {3, 128, 64}, {2, 128, 32}};
}

// ---- one block ---------------------------------------------------------------------------------

TEST(KvBlock, CodesAndParametersLieWhereTheLayoutSays) {
  for (const KvPageInt4& page : pages()) {
    for (const KvPart part : kParts) {
      for (const int first : {0, 16, 48}) {
        const int head = page.num_kv_heads - 1;
        const std::vector<float> rows = normal_values(16L * page.head_dim, 3);
        std::vector<std::uint8_t> bytes(static_cast<std::size_t>(page.bytes()), 0xA5);
        std::vector<std::uint8_t> expected = bytes;
        cpu::pack_block(page, part, head, first, rows.data(), bytes.data());
        for (int i = 0; i < 16 * page.head_dim; ++i) {
          const int token = first + i / page.head_dim;
          const int dim = i % page.head_dim;
          const int group = dim / page.kv_group;
          const KvInt4Params params = kv_int4_params(
              std::span(rows).subspan(static_cast<std::size_t>(i - dim + group * page.kv_group),
                                      static_cast<std::size_t>(page.kv_group)));
          std::uint8_t* place = expected.data() + page.params_offset(part, head, token, group);
          std::memcpy(place, &params.scale, 2);
          std::memcpy(place + 2, &params.minimum, 2);
          layout::write_nibble(expected.data(), page.slot(part, head, token, dim),
                               encode_kv_int4(rows[static_cast<std::size_t>(i)], params));
        }
        EXPECT_TRUE(bytes == expected)
            << page.head_dim << ", group " << page.kv_group << ", token " << first;
      }
    }
  }
}

TEST(KvBlock, UnpackingReadsEveryNibble) {
  for (const KvPageInt4& page : pages()) {
    std::vector<std::uint8_t> bytes;
    for (const float v : integer_values(page.bytes(), 4, 127)) {
      bytes.push_back(static_cast<std::uint8_t>(static_cast<int>(v) + 128));
    }
    for (const KvPart part : kParts) {
      for (int first = 0; first < layout::kPageTokens; first += 16) {
        for (int head = 0; head < page.num_kv_heads; ++head) {
          std::vector<float> codes(static_cast<std::size_t>(16 * page.head_dim), kPoison);
          cpu::unpack_block(page, part, head, first, bytes.data(), codes.data());
          std::vector<float> expected;
          for (int i = 0; i < 16 * page.head_dim; ++i) {
            expected.push_back(static_cast<float>(layout::read_nibble(
                bytes.data(),
                page.slot(part, head, first + i / page.head_dim, i % page.head_dim))));
          }
          EXPECT_TRUE(same_bits(expected, codes, {16, page.head_dim})) << page.kv_group;
        }
      }
    }
  }
}

// ---- after steps -------------------------------------------------------------------------------

const AttentionShape kShape = {2, 2, 64, 32, 64};

// Sequence 0 cut into passes of `tokens`, the last one shorter.
std::vector<AttentionStep> cut(int length, int tokens, DType in) {
  std::vector<AttentionStep> steps;
  for (int begin = 0; begin < length; begin += tokens) {
    steps.push_back({{{0, begin, std::min(tokens, length - begin)}}, in, DType::BF16, {}});
  }
  return steps;
}

// Every length around blocks and pages; one go, a token at a time, and passes of other lengths.
TEST(KvStore, TheBytesDoNotDependOnTheCutIntoPasses) {
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups.back().backend;
  for (const int length : {1,  2,  15, 16, 17, 30, 31, 32, 33,  47,  48,  49,
                           63, 64, 65, 66, 79, 80, 81, 96, 127, 128, 129, 130}) {
    Int4CacheReference reference(kShape, {length});
    reference.store(cut(length, length, DType::F32).front(), random_numbers());
    for (const int tokens : {length, 1, 5, 16, 17, 40, 64}) {
      Int4Cache cache(backend, kShape, {length});
      for (const AttentionStep& step : cut(length, tokens, DType::F32)) {
        (void)cache.run(step, random_numbers());
      }
      const Int4CacheBytes bytes = cache.bytes();
      EXPECT_TRUE(bytes.pages == reference.bytes().pages) << length << " by " << tokens;
      EXPECT_TRUE(live_rows(bytes, kShape, cache.whole(), {length}) ==
                  live_rows(reference.bytes(), kShape, cache.whole(), {length}))
          << length << " by " << tokens;
    }
  }
}

// Prefill rounds q, k and v before it comes here, decode leaves that to the op: where they are
// rounded alike, they are stored alike.
TEST(KvStore, PrefillAndDecodeStoreTheSame) {
  const std::vector<CpuSetup> setups = cpu_setups();
  AttentionShape shape = kShape;
  shape.rotation_block = 0;
  Int4Cache prefill(*setups.back().backend, shape, {70});
  Int4Cache decode(*setups.back().backend, shape, {70});
  for (const AttentionStep& step : cut(70, 70, DType::BF16)) {
    (void)prefill.run(step, random_numbers());
  }
  for (const AttentionStep& step : cut(70, 7, DType::F32)) (void)decode.run(step, random_numbers());
  EXPECT_TRUE(prefill.bytes().pages == decode.bytes().pages);
  EXPECT_TRUE(live_rows(prefill.bytes(), shape, prefill.whole(), {70}) ==
              live_rows(decode.bytes(), shape, decode.whole(), {70}));
}

// A block is packed by the step that completes it, and neither before nor after.
TEST(KvStore, BlocksArePackedOnceWhenTheyAreComplete) {
  const std::vector<CpuSetup> setups = cpu_setups();
  Int4Cache cache(*setups.back().backend, kShape, {100});
  std::vector<std::uint8_t> before = cache.bytes().pages;
  for (int position = 0; position < 100; ++position) {
    (void)cache.run({{{0, position, 1}}, DType::F32, DType::BF16, {}}, random_numbers());
    const std::vector<std::uint8_t> now = cache.bytes().pages;
    const bool completes = position % 16 == 15 && position > 16;
    EXPECT_EQ(now != before, completes) << position;
    // What is packed stays as it is: bytes change from poison alone.
    for (std::size_t i = 0; i < now.size(); ++i) {
      ASSERT_TRUE(now[i] == before[i] || before[i] == 0xFF) << position << ", byte " << i;
    }
    before = now;
  }
}

// Going back to a multiple of 16 and on with other tokens leaves what a fresh sequence has.
TEST(KvStore, ASequenceMayGoBackToAWholeBlock) {
  const std::vector<CpuSetup> setups = cpu_setups();
  const Numbers numbers = random_numbers();
  const Numbers others = [&](Operand operand, int sequence, int position, int head, int dim) {
    return numbers(operand, sequence + 7 * (position >= 48), position, head, dim);
  };
  for (const int reached : {49, 63, 64, 79, 90}) {
    Int4Cache cache(*setups.back().backend, kShape, {90});
    (void)cache.run({{{0, 0, 48}}, DType::F32, DType::BF16, {}}, numbers);
    (void)cache.run({{{0, 48, reached - 48}}, DType::F32, DType::BF16, {}}, numbers);
    Int4Cache fresh(*setups.back().backend, kShape, {90});
    (void)fresh.run({{{0, 0, 48}}, DType::F32, DType::BF16, {}}, others);
    const AttentionStep step = {{{0, 48, 42}}, DType::F32, DType::BF16, {}};
    EXPECT_TRUE(same_bits(fresh.run(step, others), cache.run(step, others), {42, 128}));
    EXPECT_TRUE(fresh.bytes().pages == cache.bytes().pages) << reached;
  }
}

// Slots and pages of sequences that are not in the step keep their bytes.
TEST(KvStore, OtherSequencesAreLeftAlone) {
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const CpuSetup& setup : setups) {
    const std::vector<int> capacities = {80, 80, 80};
    Int4Cache cache(*setup.backend, kShape, capacities);
    Int4CacheReference reference(kShape, capacities);
    const std::vector<AttentionStep> steps = {
        {{{1, 0, 50}}, DType::BF16, DType::BF16, {}},
        {{{2, 0, 20}, {0, 0, 80}}, DType::BF16, DType::BF16, {}},
        {{{1, 50, 14}, {2, 20, 12}}, DType::BF16, DType::BF16, {}}};
    for (const AttentionStep& step : steps) {
      (void)cache.run(step, random_numbers());
      reference.store(step, random_numbers());
      EXPECT_TRUE(cache.bytes() == reference.bytes()) << setup.name;
    }
  }
}

}  // namespace
}  // namespace fut::test
