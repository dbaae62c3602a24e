// qkv_rope_append in float32: projections, RoPE and the way into the cache, over ragged steps whose
// tokens fall on page borders; nothing else in the cache may change. The narrower precisions are in
// qkv_precisions_test.cpp.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "kernels/numeric/rope_table.h"
#include "tests/support/matrix_reference.h"
#include "tests/support/ragged_case.h"

namespace fut::test {
namespace {

constexpr float kEps = 1e-5F;
constexpr int kPositions = 200;

struct Case {
  std::vector<SequenceShape> sequences;
  int hidden, num_q_heads, num_kv_heads, head_dim;
  DType dtype;

  [[nodiscard]] std::int64_t q_cols() const { return std::int64_t{num_q_heads} * head_dim; }
  [[nodiscard]] std::int64_t kv_cols() const { return std::int64_t{num_kv_heads} * head_dim; }
};

std::vector<Case> cases() {
  // New tokens that begin, end and pass at slots 62, 63, 0 and 1, prefill and decode in one step.
  const std::vector<SequenceShape> mixed = {{1, 1},  {63, 63},  {1, 64},
                                            {2, 65}, {66, 130}, {1, 130}};
  return {{mixed, 48, 4, 2, 16, DType::F32},
          {mixed, 40, 2, 2, 6, DType::BF16},
          {mixed, 64, 3, 1, 24, DType::F16},
          {{{1, 64}}, 256, 2, 1, 128, DType::BF16},
          {{{1, 65}}, 33, 1, 1, 2, DType::F32}};
}

struct Inputs {
  std::vector<float> x, gain, q_proj, k_proj, v_proj;
  RopeTable rope;

  Inputs(const Case& c, std::int64_t tokens)
      : x(normal_values(tokens * c.hidden, 1, 2.0F)),
        gain(normal_values(c.hidden, 2)),
        q_proj(normal_values(c.q_cols() * c.hidden, 3, 0.2F)),
        k_proj(normal_values(c.kv_cols() * c.hidden, 4, 0.2F)),
        v_proj(normal_values(c.kv_cols() * c.hidden, 5, 0.2F)),
        rope(make_rope_table(RopeParams{}, c.head_dim, kPositions)) {}
};

std::vector<int> cached_before(const Case& c) {
  std::vector<int> cached;
  for (const SequenceShape& s : c.sequences) cached.push_back(s.kv_length - s.new_tokens);
  return cached;
}

struct Result {
  std::vector<float> q, pages;
};

Result run(Backend& backend, const Case& c, const Inputs& in) {
  const RaggedCase step(backend, c.sequences, {c.num_kv_heads, c.head_dim}, cached_before(c));
  const std::int64_t tokens = step.batch().num_tokens;
  const GuardedMatrix x(backend, {tokens, c.hidden}, in.x);
  const Guarded<float> gain(backend, in.gain);
  const GuardedWeight q(backend, c.dtype, {c.q_cols(), c.hidden}, in.q_proj);
  const GuardedWeight k(backend, c.dtype, {c.kv_cols(), c.hidden}, in.k_proj);
  const GuardedWeight v(backend, c.dtype, {c.kv_cols(), c.hidden}, in.v_proj);
  const Guarded<float> cos(backend, in.rope.cos);
  const Guarded<float> sin(backend, in.rope.sin);
  const GuardedMatrix q_out(backend, {tokens, c.q_cols()});
  QkvRopeAppendArgs args;
  args.x = x.const_view();
  args.gain = gain.data();
  args.eps = kEps;
  args.weights = QkvMatrices{q.view(), k.view(), v.view()};
  args.num_q_heads = c.num_q_heads;
  args.num_kv_heads = c.num_kv_heads;
  args.head_dim = c.head_dim;
  args.rope_cos = cos.data();
  args.rope_sin = sin.data();
  args.rope_positions = kPositions;
  args.batch = step.batch();
  args.kv = step.kv();
  args.q_out = q_out.view();
  backend.qkv_rope_append(args);
  return {q_out.values(), step.pages()};
}

std::vector<Bounded> project(const std::vector<Bounded>& h, const std::vector<float>& weight,
                             std::int64_t rows) {
  std::vector<Bounded> y;
  for (std::int64_t n = 0; n < rows; ++n) {
    y.push_back(contract_dot(h, bounded(row_of(weight, n, static_cast<std::int64_t>(h.size())))));
  }
  return y;
}

void rotate_heads(std::vector<Bounded>& v, const RopeTable& rope, int position) {
  const auto half = static_cast<std::size_t>(rope.half_dim);
  for (std::size_t head = 0; head < v.size(); head += 2 * half) {
    for (std::size_t i = 0; i < half; ++i) {
      const std::size_t entry = static_cast<std::size_t>(position) * half + i;
      const Bounded cos(rope.cos[entry]);
      const Bounded sin(rope.sin[entry]);
      const Bounded a = v[head + i];
      const Bounded b = v[head + i + half];
      v[head + i] = a * cos - b * sin;
      v[head + i + half] = b * cos + a * sin;
    }
  }
}

// What the op must leave behind: queries, and pages in which only the new tokens' slots differ.
struct Expected {
  std::vector<Bounded> q, pages;
};

Expected expected_result(Backend& backend, const Case& c, const Inputs& in) {
  const layout::KvPageDense page = {c.num_kv_heads, c.head_dim};
  const RaggedCase step(backend, c.sequences, page, cached_before(c));
  const std::vector<float> before = step.pages();
  const auto rounded = [&](const std::vector<float>& w, std::int64_t rows) {
    return GuardedWeight(backend, c.dtype, {rows, c.hidden}, w).rounded();
  };
  const std::vector<float> q_proj = rounded(in.q_proj, c.q_cols());
  const std::vector<float> k_proj = rounded(in.k_proj, c.kv_cols());
  const std::vector<float> v_proj = rounded(in.v_proj, c.kv_cols());

  Expected expected;
  expected.pages.assign(before.begin(), before.end());
  for (std::size_t t = 0; t < step.arrays().positions.size(); ++t) {
    const int position = step.arrays().positions[t];
    const std::vector<Bounded> h =
        bounded_normed_row(row_of(in.x, static_cast<std::int64_t>(t), c.hidden), in.gain, kEps);
    std::vector<Bounded> q = project(h, q_proj, c.q_cols());
    std::vector<Bounded> k = project(h, k_proj, c.kv_cols());
    const std::vector<Bounded> v = project(h, v_proj, c.kv_cols());
    rotate_heads(q, in.rope, position);
    rotate_heads(k, in.rope, position);
    expected.q.insert(expected.q.end(), q.begin(), q.end());
    const std::int64_t first =
        step.arrays().page_offset(page, step.arrays().sequence_of_token[t], position);
    const int slot = position % layout::kPageTokens;
    for (int head = 0; head < c.num_kv_heads; ++head) {
      const auto from = head * c.head_dim;
      std::copy_n(k.begin() + from, c.head_dim,
                  expected.pages.begin() + first + page.k_offset(head, slot));
      std::copy_n(v.begin() + from, c.head_dim,
                  expected.pages.begin() + first + page.v_offset(head, slot));
    }
  }
  return expected;
}

// Poison must still be poison; everything else is compared within its bound (which is zero for what
// was cached before).
void expect_pages(const std::vector<Bounded>& expected, const std::vector<float>& actual) {
  std::vector<Bounded> wanted;
  std::vector<float> got;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i].value)) {
      ASSERT_TRUE(std::isnan(actual[i])) << "element " << i << " was written";
    } else {
      wanted.push_back(expected[i]);
      got.push_back(actual[i]);
    }
  }
  EXPECT_TRUE(within_bounds(wanted, got, {1, static_cast<std::int64_t>(wanted.size())}));
}

TEST(QkvRopeAppend, StaysWithinTheDerivedBoundAndWritesNothingElse) {
  for (const CpuSetup& setup : cpu_setups()) {
    for (const Case& c : cases()) {
      const auto tokens = static_cast<std::int64_t>(RaggedArrays(c.sequences).positions.size());
      const Inputs in(c, tokens);
      const Result result = run(*setup.backend, c, in);
      const Expected expected = expected_result(*setup.backend, c, in);
      SCOPED_TRACE(setup.name + ", head_dim " + std::to_string(c.head_dim));
      EXPECT_TRUE(within_bounds(expected.q, result.q, {tokens, c.q_cols()}));
      expect_pages(expected.pages, result.pages);
    }
  }
}

TEST(QkvRopeAppend, PositionZeroIsNotRotated) {
  // With a matrix of the identity and a gain of one, q is x over its rms.
  Case c = {{{1, 1}}, 16, 1, 1, 16, DType::F32};
  Inputs in(c, 1);
  std::fill(in.gain.begin(), in.gain.end(), 1.0F);
  for (std::vector<float>* w : {&in.q_proj, &in.k_proj, &in.v_proj}) {
    std::fill(w->begin(), w->end(), 0.0F);
    for (std::size_t i = 0; i < 16; ++i) (*w)[17 * i] = 1.0F;
  }
  const std::vector<CpuSetup> setups = cpu_setups();
  const Result result = run(*setups[0].backend, c, in);
  EXPECT_TRUE(within_bounds(bounded_normed_row(in.x, in.gain, kEps), result.q, {1, 16}));
}

TEST(QkvRopeAppend, GivesTheSameBitsOnEverySetup) {
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const Case& c : cases()) {
    const auto tokens = static_cast<std::int64_t>(RaggedArrays(c.sequences).positions.size());
    const Inputs in(c, tokens);
    const Result first = run(*setups[0].backend, c, in);
    for (const CpuSetup& setup : setups) {
      const Result other = run(*setup.backend, c, in);
      EXPECT_TRUE(same_bits(first.q, other.q, {tokens, c.q_cols()})) << setup.name;
      EXPECT_TRUE(
          same_bits(first.pages, other.pages, {1, static_cast<std::int64_t>(first.pages.size())}))
          << setup.name;
    }
  }
}

// A token's results do not depend on who shares the step.
TEST(QkvRopeAppend, GivesTheSameBitsForASequenceAlone) {
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups.back().backend;
  const Case together = cases()[0];
  const RaggedArrays arrays(together.sequences);
  const Inputs in(together, static_cast<std::int64_t>(arrays.positions.size()));
  const Result all = run(backend, together, in);
  for (std::size_t s = 0; s < together.sequences.size(); ++s) {
    Case alone = together;
    alone.sequences = {together.sequences[s]};
    Inputs own = in;
    const std::int64_t first = arrays.q_indptr[s];
    const std::int64_t end = arrays.q_indptr[s + 1];
    own.x.assign(in.x.begin() + first * together.hidden, in.x.begin() + end * together.hidden);
    const Result one = run(backend, alone, own);
    const std::vector<float> part(all.q.begin() + first * together.q_cols(),
                                  all.q.begin() + end * together.q_cols());
    EXPECT_TRUE(same_bits(part, one.q, {end - first, together.q_cols()})) << "sequence " << s;
  }
}

TEST(QkvRopeAppend, RefusesAPositionPastTheRopeTable) {
  const std::vector<CpuSetup> setups = cpu_setups();
  const Case c = {{{1, kPositions + 1}}, 16, 1, 1, 4, DType::F32};
  EXPECT_THROW(run(*setups[0].backend, c, Inputs(c, 1)), Error);
}

}  // namespace
}  // namespace fut::test
