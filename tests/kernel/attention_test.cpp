// attention over a float32 cache: prefill and decode in one op over pages in disorder, bit by bit
// what the contract says and within derived bounds of the mathematics; poison lies in every slot
// past a sequence's length and must never be read. Other caches have tests of their own.
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/dense_attention.h"

namespace fut::test {
namespace {

std::string name_of(const DenseAttention& c) {
  return fmt::format("{}/{} heads of {}, {} sequences", c.num_q_heads, c.num_kv_heads, c.head_dim,
                     c.sequences.size());
}

TEST(Attention, IsTheContractBitForBitOnEverySetup) {
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const DenseAttention& c : dense_attention_cases()) {
    const std::vector<float> q = c.queries();
    const std::vector<float> expected = c.expected(q);
    for (const CpuSetup& setup : setups) {
      EXPECT_TRUE(same_bits(expected, c.run(*setup.backend, q), c.shape()))
          << setup.name << ", " << name_of(c);
    }
  }
}

TEST(Attention, StaysWithinTheDerivedBound) {
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const DenseAttention& c : dense_attention_cases()) {
    const std::vector<float> q = c.queries();
    EXPECT_TRUE(within_bounds(c.bounds(q), c.run(*setups.back().backend, q), c.shape()))
        << name_of(c);
  }
}

// Equal keys give equal probabilities: the mean of the values, which is exact where the number of
// keys is a power of two and values are multiples of 1/64.
TEST(Attention, AveragesValuesExactlyWhereAllScoresAreEqual) {
  const DenseAttention c = {{{1, 1}, {1, 2}, {1, 64}, {1, 128}}, 2, 1, 16};
  const std::vector<float> q(4 * 32, 0.0F);
  std::vector<float> expected;
  for (int s = 0; s < 4; ++s) {
    const int length = c.sequences[static_cast<std::size_t>(s)].kv_length;
    for (int i = 0; i < 32; ++i) {
      float sum = 0;
      for (int k = 0; k < length; ++k) sum += cached_value(true, s, 0, k, i % 16);
      expected.push_back(sum / static_cast<float>(length));
    }
  }
  for (const CpuSetup& setup : cpu_setups()) {
    EXPECT_TRUE(same_bits(expected, c.run(*setup.backend, q), {4, 32})) << setup.name;
  }
}

TEST(Attention, SurvivesScoresThatWouldOverflowExp) {
  const DenseAttention c = {{{1, 70}}, 2, 2, 16};
  const std::vector<float> q(32, 1e4F);
  for (const CpuSetup& setup : cpu_setups()) {
    for (const float v : c.run(*setup.backend, q)) EXPECT_TRUE(std::isfinite(v));
  }
}

// Prefill of a prompt and decode of its last token are the same arithmetic, and neighbours in the
// step change nothing.
TEST(Attention, GivesTheSameBitsForATokenHoweverItIsBatched) {
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups.back().backend;
  const DenseAttention prompt = {{{130, 130}}, 4, 2, 16};
  const std::vector<float> q = prompt.queries();
  const std::vector<float> all = prompt.run(backend, q);
  for (const int length : {1, 63, 64, 65, 130}) {
    const auto first = (length - 1) * prompt.cols();
    const std::vector<float> own(q.begin() + first, q.begin() + first + prompt.cols());
    const std::vector<float> wanted(all.begin() + first, all.begin() + first + prompt.cols());
    const DenseAttention decode = {{{1, length}}, 4, 2, 16};
    EXPECT_TRUE(same_bits(wanted, decode.run(backend, own), {1, prompt.cols()}))
        << "decode at length " << length;
    // The same token with strangers behind it.
    std::vector<float> more = own;
    const std::vector<float> others = normal_values(2 * prompt.cols(), 11);
    more.insert(more.end(), others.begin(), others.end());
    const DenseAttention company = {{{1, length}, {2, 70}}, 4, 2, 16};
    const std::vector<float> shared = company.run(backend, more);
    EXPECT_TRUE(same_bits(wanted, std::span(shared).first(wanted.size()), {1, prompt.cols()}))
        << "among others at length " << length;
  }
}

// What a batch's arrays promise, broken once each: refused, never read past.
TEST(Attention, RefusesArraysThatContradictThemselves) {
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups[0].backend;
  const RaggedCase step(backend, {{2, 65}, {1, 3}}, {1, 4}, {65, 3});
  const GuardedActivation q(backend, DType::F32, {3, 4}, normal_values(12, 1));
  const GuardedActivation out(backend, DType::F32, {3, 4});
  const auto run_with = [&](const char* what, auto change, int longest_context = 0) {
    RaggedArrays arrays = step.arrays();
    change(arrays);
    AttentionArgs args;
    args.q = q.const_view();
    args.num_q_heads = 1;
    args.num_kv_heads = 1;
    args.head_dim = 4;
    args.batch = step.batch();
    args.batch.longest_context = longest_context;
    args.batch.positions = arrays.positions.data();
    args.batch.q_indptr = arrays.q_indptr.data();
    args.batch.kv_indptr = arrays.kv_indptr.data();
    args.batch.page_table = arrays.page_table.data();
    args.batch.kv_lengths = arrays.kv_lengths.data();
    args.kv = step.kv();
    args.out = out.view();
    EXPECT_THROW(backend.attention(args), Error) << what;
  };
  run_with("q_indptr does not start at 0", [](RaggedArrays& a) { a.q_indptr[0] = 1; });
  run_with("q_indptr ends early", [](RaggedArrays& a) { a.q_indptr[2] = 2; });
  run_with("q_indptr falls", [](RaggedArrays& a) { a.q_indptr[1] = 4; });
  run_with("fewer pages than tokens", [](RaggedArrays& a) { a.kv_indptr[1] = 1; });
  run_with("page below 0", [](RaggedArrays& a) { a.page_table[1] = -1; });
  run_with("page past the end", [](RaggedArrays& a) { a.page_table[1] = a.num_pages; });
  run_with("position off by one", [](RaggedArrays& a) { a.positions[1] = 63; });
  run_with("more new tokens than length", [](RaggedArrays& a) { a.kv_lengths[0] = 1; });
  run_with(
      "longer than the longest", [](RaggedArrays&) {}, 64);
}

}  // namespace
}  // namespace fut::test
