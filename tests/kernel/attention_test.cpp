// attention: prefill and decode in one op over paged caches, held to a float64 reference within the
// derived bound; poison lies in every slot past a sequence's length and must never be read.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/ragged_case.h"

namespace fut::test {
namespace {

struct Case {
  std::vector<SequenceShape> sequences;
  int num_q_heads, num_kv_heads, head_dim;

  [[nodiscard]] std::int64_t cols() const { return std::int64_t{num_q_heads} * head_dim; }
  [[nodiscard]] layout::KvPageF32 page() const { return {num_kv_heads, head_dim}; }
};

std::vector<Case> cases() {
  const std::vector<SequenceShape> decode = {{1, 1}, {1, 63}, {1, 64}, {1, 65}, {1, 129}, {1, 200}};
  const std::vector<SequenceShape> prefill = {{1, 1}, {63, 63}, {64, 64}, {65, 65}};
  const std::vector<SequenceShape> mixed = {{3, 66}, {1, 130}, {65, 128}, {2, 2}};
  return {{decode, 4, 1, 16}, {decode, 8, 2, 64},      {prefill, 2, 1, 128},
          {prefill, 4, 4, 8}, {mixed, 6, 2, 6},        {mixed, 3, 1, 24},
          {mixed, 4, 2, 40},  {{{1, 300}}, 4, 1, 128}, {{{1, 300}}, 1, 1, 2}};
}

std::vector<int> lengths(const Case& c) {
  std::vector<int> result;
  for (const SequenceShape& s : c.sequences) result.push_back(s.kv_length);
  return result;
}

std::vector<float> queries(const Case& c) {
  const auto tokens = static_cast<std::int64_t>(RaggedArrays(c.sequences).positions.size());
  return normal_values(tokens * c.cols(), 7, 2.0F);
}

std::vector<float> run(Backend& backend, const Case& c, const std::vector<float>& q_values) {
  const RaggedCase step(backend, c.sequences, c.page(), lengths(c));
  const Shape shape = {step.batch().num_tokens, c.cols()};
  const GuardedMatrix q(backend, shape, q_values);
  const GuardedMatrix out(backend, shape);
  const std::vector<float> pages = step.pages();
  backend.attention({q.const_view(), c.num_q_heads, c.num_kv_heads, c.head_dim, step.batch(),
                     step.kv(), out.view()});
  EXPECT_TRUE(same_bits(pages, step.pages(), {1, static_cast<std::int64_t>(pages.size())}));
  return out.values();
}

// One head of one token over keys 0 .. position.
std::vector<Bounded> expected_head(const Case& c, std::span<const float> q, int sequence,
                                   int kv_head, int position) {
  const auto head_dim = static_cast<std::size_t>(c.head_dim);
  const std::vector<Bounded> query(q.begin(), q.end());
  const Bounded scale = Bounded(1.0F) / sqrt(Bounded(static_cast<float>(c.head_dim)));
  std::vector<Bounded> scores;
  double maximum = -INFINITY;
  for (int i = 0; i <= position; ++i) {
    std::vector<Bounded> key;
    for (int d = 0; d < c.head_dim; ++d)
      key.emplace_back(cached_value(false, sequence, kv_head, i, d));
    scores.push_back(contract_dot(query, key) * scale);
    maximum = std::max(maximum, scores.back().value);
  }
  // Any number may be taken from all scores: it cancels in the quotient. So the maximum carries no
  // error of its own here.
  std::vector<Bounded> p;
  for (const Bounded& s : scores) p.push_back(exp(s - Bounded(maximum, 0)));
  const std::vector<Bounded> ones(p.size(), Bounded(1.0F));
  const int num_keys = position + 1;
  const Bounded sum = dot(p, ones, num_keys);
  std::vector<Bounded> out;
  for (std::size_t d = 0; d < head_dim; ++d) {
    std::vector<Bounded> values;
    for (int i = 0; i <= position; ++i) {
      values.emplace_back(cached_value(true, sequence, kv_head, i, static_cast<int>(d)));
    }
    out.push_back(dot(p, values, num_keys + 1) / sum);
  }
  return out;
}

std::vector<Bounded> expected_result(const Case& c, const std::vector<float>& q) {
  const RaggedArrays arrays(c.sequences);
  std::vector<Bounded> expected;
  for (std::size_t t = 0; t < arrays.positions.size(); ++t) {
    for (int head = 0; head < c.num_q_heads; ++head) {
      const auto first = static_cast<std::size_t>(static_cast<std::int64_t>(t) * c.cols() +
                                                  std::int64_t{head} * c.head_dim);
      const auto q_head = std::span(q).subspan(first, static_cast<std::size_t>(c.head_dim));
      const std::vector<Bounded> out =
          expected_head(c, q_head, arrays.sequence_of_token[t],
                        head / (c.num_q_heads / c.num_kv_heads), arrays.positions[t]);
      expected.insert(expected.end(), out.begin(), out.end());
    }
  }
  return expected;
}

TEST(Attention, StaysWithinTheDerivedBound) {
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const Case& c : cases()) {
    const std::vector<float> q = queries(c);
    const std::vector<Bounded> expected = expected_result(c, q);
    const Shape shape = {static_cast<std::int64_t>(q.size()) / c.cols(), c.cols()};
    for (const CpuSetup& setup : setups) {
      EXPECT_TRUE(within_bounds(expected, run(*setup.backend, c, q), shape))
          << setup.name << ", head_dim " << c.head_dim << ", " << c.num_q_heads << "/"
          << c.num_kv_heads << " heads";
    }
  }
}

// Equal keys give equal probabilities: the mean of the values, which is exact where the number of
// keys is a power of two and values are multiples of 1/64.
TEST(Attention, AveragesValuesExactlyWhereAllScoresAreEqual) {
  const Case c = {{{1, 1}, {1, 2}, {1, 64}, {1, 128}}, 2, 1, 16};
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
    EXPECT_TRUE(same_bits(expected, run(*setup.backend, c, q), {4, 32})) << setup.name;
  }
}

TEST(Attention, SurvivesScoresThatWouldOverflowExp) {
  const Case c = {{{1, 70}}, 2, 2, 16};
  const std::vector<float> q(32, 1e4F);
  for (const CpuSetup& setup : cpu_setups()) {
    for (const float v : run(*setup.backend, c, q)) EXPECT_TRUE(std::isfinite(v));
  }
}

TEST(Attention, GivesTheSameBitsOnEverySetup) {
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const Case& c : cases()) {
    const std::vector<float> q = queries(c);
    const std::vector<float> first = run(*setups[0].backend, c, q);
    for (const CpuSetup& setup : setups) {
      EXPECT_TRUE(same_bits(first, run(*setup.backend, c, q),
                            {static_cast<std::int64_t>(q.size()) / c.cols(), c.cols()}))
          << setup.name;
    }
  }
}

// Prefill of a prompt and decode of its last token are the same arithmetic, and neighbours in the
// step change nothing.
TEST(Attention, GivesTheSameBitsForATokenHoweverItIsBatched) {
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups.back().backend;
  const Case prompt = {{{130, 130}}, 4, 2, 16};
  const std::vector<float> q = queries(prompt);
  const std::vector<float> all = run(backend, prompt, q);
  for (const int length : {1, 63, 64, 65, 130}) {
    const auto first = (length - 1) * prompt.cols();
    const std::vector<float> own(q.begin() + first, q.begin() + first + prompt.cols());
    const std::vector<float> wanted(all.begin() + first, all.begin() + first + prompt.cols());
    EXPECT_TRUE(same_bits(wanted, run(backend, {{{1, length}}, 4, 2, 16}, own), {1, prompt.cols()}))
        << "decode at length " << length;
    // The same token with strangers behind it.
    std::vector<float> more = own;
    const std::vector<float> others = normal_values(2 * prompt.cols(), 11);
    more.insert(more.end(), others.begin(), others.end());
    const std::vector<float> shared = run(backend, {{{1, length}, {2, 70}}, 4, 2, 16}, more);
    EXPECT_TRUE(same_bits(wanted, std::span(shared).first(wanted.size()), {1, prompt.cols()}))
        << "among others at length " << length;
  }
}

// What a batch's arrays promise, broken once each: refused, never read past.
TEST(Attention, RefusesArraysThatContradictThemselves) {
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups[0].backend;
  const Case c = {{{2, 65}, {1, 3}}, 1, 1, 4};
  const RaggedCase step(backend, c.sequences, c.page(), lengths(c));
  const GuardedMatrix q(backend, {3, 4}, normal_values(12, 1));
  const GuardedMatrix out(backend, {3, 4});
  const auto run_with = [&](const char* what, auto change) {
    RaggedArrays arrays = step.arrays();
    change(arrays);
    RaggedBatch batch = step.batch();
    batch.positions = arrays.positions.data();
    batch.q_indptr = arrays.q_indptr.data();
    batch.kv_indptr = arrays.kv_indptr.data();
    batch.page_table = arrays.page_table.data();
    batch.kv_lengths = arrays.kv_lengths.data();
    EXPECT_THROW(backend.attention({q.const_view(), 1, 1, 4, batch, step.kv(), out.view()}), Error)
        << what;
  };
  run_with("q_indptr does not start at 0", [](RaggedArrays& a) { a.q_indptr[0] = 1; });
  run_with("q_indptr ends early", [](RaggedArrays& a) { a.q_indptr[2] = 2; });
  run_with("q_indptr falls", [](RaggedArrays& a) { a.q_indptr[1] = 4; });
  run_with("fewer pages than tokens", [](RaggedArrays& a) { a.kv_indptr[1] = 1; });
  run_with("page below 0", [](RaggedArrays& a) { a.page_table[1] = -1; });
  run_with("page past the end", [](RaggedArrays& a) { a.page_table[1] = a.num_pages; });
  run_with("position off by one", [](RaggedArrays& a) { a.positions[1] = 63; });
  run_with("more new tokens than length", [](RaggedArrays& a) { a.kv_lengths[0] = 1; });
}

}  // namespace
}  // namespace fut::test
