// attention on the CPU: for each token and KV head, scores of all visible keys page by page, then
// softmax in two passes, then the weighted sum of values page by page.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/ragged.h"

namespace fut::cpu {
namespace {

// Query heads of one token that read the same KV head.
struct HeadGroup {
  std::int64_t token = 0;
  int first_q_head = 0;
  int num_q_heads = 0;
  int kv_head = 0;
};

// The heads of every token, cut into groups of heads_per_group that never span two KV heads.
struct Grouping {
  int heads_per_kv_head = 1;
  int heads_per_group = 1;
  int groups_per_token = 1;

  Grouping(const AttentionArgs& a, int num_threads)
      : heads_per_kv_head(a.num_q_heads / a.num_kv_heads) {
    // One pass over the keys serves all heads of a KV head, unless that leaves threads idle.
    const std::int64_t whole_groups = a.q.rows * a.num_kv_heads;
    heads_per_group = whole_groups >= num_threads ? heads_per_kv_head : 1;
    groups_per_token = a.num_q_heads / heads_per_group;
  }

  [[nodiscard]] HeadGroup at(std::int64_t i) const {
    const int first_q_head = static_cast<int>(i % groups_per_token) * heads_per_group;
    return {i / groups_per_token, first_q_head, heads_per_group, first_q_head / heads_per_kv_head};
  }
};

// Calls fn(page, first key, number of keys) for each page of the sequence's first num_keys tokens.
template <class Fn>
void for_each_page(const AttentionArgs& a, int sequence, std::int64_t num_keys, const Fn& fn) {
  for (std::int64_t first = 0; first < num_keys; first += layout::kPageTokens) {
    fn(page_of_position(a.batch, a.kv, sequence, first), first,
       std::min<std::int64_t>(layout::kPageTokens, num_keys - first));
  }
}

// Turns each row of dot products into exp(score - maximum of the row).
void exponentiate(const VectorLoops& loops, float* scores, int num_rows, std::int64_t num_keys,
                  float scale) {
  for (int row = 0; row < num_rows; ++row) {
    float* values = scores + row * num_keys;
    const float maximum = loops.scale_and_find_maximum(values, num_keys, scale);
    loops.exponentials(values, num_keys, maximum);
  }
}

// The sum of each row, keys ascending. All rows go along together: one addition of a row has to
// wait for the one before it, but not for those of other rows.
void add_up_rows(const float* values, int num_rows, std::int64_t num_keys, float* sums) {
  std::fill_n(sums, num_rows, 0.0F);
  for (std::int64_t i = 0; i < num_keys; ++i) {
    for (int row = 0; row < num_rows; ++row) sums[row] += values[row * num_keys + i];
  }
}

// `scores`: as many rows of position + 1 floats as the group has heads; `sums`: one float each.
void attend(const VectorLoops& loops, const AttentionArgs& a, const HeadGroup& group, float* scores,
            float* sums) {
  const int sequence = sequence_of_token(a.batch, group.token);
  const std::int64_t num_keys = std::int64_t{a.batch.positions[group.token]} + 1;
  const std::int64_t first_col = static_cast<std::int64_t>(group.first_q_head) * a.head_dim;
  const float* q = a.q.row(group.token) + first_col;
  float* out = a.out.row(group.token) + first_col;

  for_each_page(a, sequence, num_keys, [&](const float* page, std::int64_t first, std::int64_t n) {
    const float* keys = page + a.kv.page.k_offset(group.kv_head, 0);
    loops.dots({q, a.head_dim, group.num_q_heads, DType::F32, keys, a.head_dim, n, a.head_dim,
                scores + first, num_keys});
  });
  const float scale = 1.0F / std::sqrt(static_cast<float>(a.head_dim));
  exponentiate(loops, scores, group.num_q_heads, num_keys, scale);
  add_up_rows(scores, group.num_q_heads, num_keys, sums);
  std::fill_n(out, static_cast<std::int64_t>(group.num_q_heads) * a.head_dim, 0.0F);
  for_each_page(a, sequence, num_keys, [&](const float* page, std::int64_t first, std::int64_t n) {
    const float* values = page + a.kv.page.v_offset(group.kv_head, 0);
    loops.add_weighted_rows({scores + first, num_keys, values, a.head_dim, n, a.head_dim, out,
                             a.head_dim, group.num_q_heads});
  });
  for (int head = 0; head < group.num_q_heads; ++head) {
    for (int d = 0; d < a.head_dim; ++d) out[head * a.head_dim + d] /= sums[head];
  }
}

}  // namespace

void attention(Workers& workers, const AttentionArgs& a) {
  check(a);
  check_ragged("attention", a.batch, a.kv);
  const int threads = workers.pool.num_threads();
  const Grouping grouping(a, threads);
  const std::int32_t longest =
      *std::max_element(a.batch.kv_lengths, a.batch.kv_lengths + a.batch.num_sequences);
  // One more float a head: the sum of its probabilities.
  const std::int64_t own_elements =
      grouping.heads_per_group * (static_cast<std::int64_t>(longest) + 1);
  workers.scratch.reserve(threads * own_elements, 1);
  float* scratch = workers.scratch.take(threads * own_elements);

  const std::int64_t work = 2LL * grouping.heads_per_group * longest * a.head_dim;
  workers.pool.parallel_for(a.q.rows * grouping.groups_per_token, work,
                            [&](std::int64_t begin, std::int64_t end, int thread) {
                              float* sums = scratch + thread * own_elements;
                              float* scores = sums + grouping.heads_per_group;
                              for (std::int64_t i = begin; i < end; ++i) {
                                attend(workers.loops, a, grouping.at(i), scores, sums);
                              }
                            });
}

}  // namespace fut::cpu
