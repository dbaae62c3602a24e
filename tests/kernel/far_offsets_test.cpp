// Where numbers of 16, 31 or 32 bits would end: positions past 65,535, pages, slots and rows of tables with
// more than 2^32 elements before them. The same bits as near the beginning. The GPU's decode attention does the
// same in attention_decode_emulated_test.cpp.
#include <gtest/gtest.h>

#include "kernels/numeric/rope_table.h"
#include "tests/support/dense_attention.h"
#include "tests/support/far_cache.h"
#include "tests/support/int4_cache.h"

namespace fut::test {
namespace {

constexpr int kLongContext = 131072;

// Boxes of the tensor memory engine are addressed by rows of 32 bits: those of keys and values of 32 sequences
// of the longest context, with the 8 KV heads of the known models.
static_assert(std::int64_t{kLongContext} * 32 * 8 * 2 < (std::int64_t{1} << 31));
// Entries of the page table, of the same.
static_assert(layout::pages_for_tokens(kLongContext) * std::int64_t{32} < (std::int64_t{1} << 31));

TEST(FarOffsets, AttentionFindsPagesOfNumbers) {
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const DenseAttention& c : dense_attention_cases()) {
    const std::vector<float> q = c.queries();
    const std::vector<float> expected = c.expected(q);
    for (const CpuSetup& setup : {std::cref(setups.front()), std::cref(setups.back())}) {
      const std::vector<float> actual = c.run(*setup.backend, q, [&](const AttentionArgs& near) {
        with_far_cache(near, [&](const AttentionArgs& far) { setup.backend->attention(far); });
      });
      EXPECT_TRUE(same_bits(expected, actual, c.shape())) << setup.name;
    }
  }
}

TEST(FarOffsets, AttentionFindsAndStoresCodesAndRawRows) {
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups.back().backend;
  const AttentionShape shape = {4, 2, 64, 32, 64};
  const Numbers numbers = random_numbers();
  const std::vector<int> lengths = {150, 40};
  Int4CacheReference reference(shape, lengths);
  Int4Cache cache(backend, shape, lengths);
  cache.use([&](const AttentionArgs& near) {
    with_far_cache(near, [&](const AttentionArgs& far) { backend.attention(far); });
  });
  // A prompt of two passes, then a few tokens of both.
  std::vector<AttentionStep> steps = {{{{0, 0, 70}, {1, 0, 33}}, DType::BF16, DType::BF16, {}},
                                      {{{0, 70, 58}}, DType::BF16, DType::BF16, {}}};
  for (int i = 0; i < 7; ++i) {
    steps.push_back({{{0, 128 + i, 1}, {1, 33 + i, 1}}, DType::F32, DType::F16, {}});
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::vector<float> expected = reference.run(steps[i], numbers);
    const auto rows = static_cast<std::int64_t>(expected.size()) / shape.q_cols();
    EXPECT_TRUE(same_bits(expected, cache.run(steps[i], numbers), {rows, shape.q_cols()})) << i;
    EXPECT_TRUE(cache.bytes() == reference.bytes()) << i;
  }
}

TEST(FarOffsets, AttentionReadsTheLongestContext) {
  const std::vector<CpuSetup> setups = cpu_setups();
  const DenseAttention c = {{{1, kLongContext}, {1, 65536}, {2, 65538}}, 1, 1, 16};
  const std::vector<float> q = c.queries();
  EXPECT_TRUE(same_bits(c.expected(q), c.run(*setups.back().backend, q), c.shape()));
}

TEST(FarOffsets, AttentionReadsAndStoresCodesPast65535) {
  const std::vector<CpuSetup> setups = cpu_setups();
  const AttentionShape shape = {1, 1, 64, 64, 0};
  constexpr int kLength = 65536 + 33;
  // Cheap, and different everywhere.
  const Numbers numbers = [](Operand operand, int, int position, int, int dim) {
    const auto h =
        static_cast<std::uint32_t>(position * 67 + dim * 29 + static_cast<int>(operand) * 11) *
        0x9E3779B9U;
    return static_cast<float>(static_cast<std::int32_t>(h)) * 0x1p-30F;
  };
  const AttentionStep history = {{{0, 0, kLength - 3}}, DType::BF16, DType::BF16, {}};
  Int4CacheReference reference(shape, {kLength});
  reference.store(history, numbers);
  Int4Cache cache(*setups.back().backend, shape, {kLength});
  cache.overwrite(reference.bytes());
  for (int position = kLength - 3; position < kLength; ++position) {
    const AttentionStep step = {{{0, position, 1}}, DType::F32, DType::F16, {}};
    const std::vector<float> expected = reference.run(step, numbers);
    EXPECT_TRUE(same_bits(expected, cache.run(step, numbers), {1, shape.q_cols()})) << position;
  }
  EXPECT_TRUE(cache.bytes() == reference.bytes());
}

// The last position of the longest context turns like a position of a table that has its angles in front.
TEST(FarOffsets, KeysAndValuesAreStoredAtTheLastPosition) {
  constexpr int kHead = 16;
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups.back().backend;
  const RopeTable rope = make_rope_table(RopeParams{}, kHead, kLongContext);
  const auto last = static_cast<std::ptrdiff_t>(kLongContext - 64) * rope.half_dim;
  const std::vector<float> x = normal_values(kHead, 1), gain(kHead, 1.0F);
  // q, the row of keys and that of values at the last slot of the page.
  const auto run = [&](int kv_length, bool far, const std::vector<float>& cos_rows,
                       const std::vector<float>& sin_rows) {
    const RaggedCase step(backend, {{1, kv_length}}, {1, kHead}, {kv_length - 1});
    const GuardedMatrix input(backend, {1, kHead}, x), q_out(backend, {1, kHead});
    const Guarded<float> gains(backend, gain), cos(backend, cos_rows), sin(backend, sin_rows);
    std::vector<GuardedWeight> weights;
    for (const std::uint32_t seed : {2U, 3U, 4U}) {
      weights.emplace_back(backend, DType::F32, Shape{kHead, kHead},
                           normal_values(kHead * kHead, seed));
    }
    QkvRopeAppendArgs args;
    args.x = input.const_view();
    args.gain = gains.data();
    args.eps = 1e-5F;
    args.weights = QkvMatrices{weights[0].view(), weights[1].view(), weights[2].view()};
    args.num_q_heads = args.num_kv_heads = 1;
    args.head_dim = kHead;
    args.rope_cos = cos.data();
    args.rope_sin = sin.data();
    args.rope_positions = static_cast<int>(cos_rows.size()) / rope.half_dim;
    args.batch = step.batch();
    args.kv = step.kv();
    args.q_out = q_out.view();
    if (far) {
      with_far_cache(args, [&](const QkvRopeAppendArgs& a) { backend.qkv_rope_append(a); });
    } else {
      backend.qkv_rope_append(args);
    }
    std::vector<float> rows = q_out.values();
    const std::vector<float> pages = step.pages();
    const layout::KvPageDense page = {1, kHead};
    const std::int64_t first = step.arrays().page_offset(page, 0, kv_length - 1);
    for (const std::int64_t row : {page.k_offset(0, 63), page.v_offset(0, 63)}) {
      rows.insert(rows.end(), pages.begin() + first + row, pages.begin() + first + row + kHead);
    }
    return rows;
  };
  const std::vector<float> near = run(64, false, {rope.cos.begin() + last, rope.cos.end()},
                                      {rope.sin.begin() + last, rope.sin.end()});
  EXPECT_TRUE(same_bits(near, run(kLongContext, true, rope.cos, rope.sin), {3, kHead}));
}

TEST(FarOffsets, EmbedFindsRowsOfAHugeTable) {
  constexpr std::int64_t kCols = 4096;
  constexpr std::int64_t kRows = kFarElements / kCols + 2;
  const SparseMemory table(kRows * kCols * 2);
  const std::vector<float> row = normal_values(kCols, 1);
  for (std::int64_t i = 0; i < kCols; ++i) {
    table.as<std::uint16_t>()[(kRows - 1) * kCols + i] =
        static_cast<std::uint16_t>(bits_of(DType::BF16, row[static_cast<std::size_t>(i)]));
  }
  for (const CpuSetup& setup : cpu_setups()) {
    const Guarded<std::int32_t> ids(*setup.backend, {static_cast<std::int32_t>(kRows - 1)});
    const GuardedMatrix out(*setup.backend, {1, kCols});
    setup.backend->embed(
        {ids.data(), 1, {DType::BF16, table.as<void>(), kRows, kCols}, out.view()});
    std::vector<float> expected;
    for (const float v : row) expected.push_back(rounded_to(DType::BF16, v));
    EXPECT_TRUE(same_bits(expected, out.values(), {1, kCols})) << setup.name;
  }
}

}  // namespace
}  // namespace fut::test
