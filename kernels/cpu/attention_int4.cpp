// Decode over an INT4 cache, block of 16 keys after block; see attention_int4.h.
#include "kernels/cpu/attention_int4.h"

#include <algorithm>
#include <array>

#include "kernels/numeric/kv_int4.h"

namespace fut::cpu {
namespace {

using layout::KvPart;

// A tile with the head it looks at, and what both halves of the work go by.
struct Work {
  const VectorLoops& loops;
  const Tile& tile;
  const KvHeadInt4& head;
  const TileMemory& memory;
  int head_dim;
  int kv_group;

  [[nodiscard]] int rows() const { return tile.rows(); }
  [[nodiscard]] int num_groups() const { return head_dim / kv_group; }
  // [group, row, 16]
  [[nodiscard]] float* spare(int group) const {
    return memory.spare + static_cast<std::int64_t>(group) * rows() * kKvBlockTokens;
  }
  // The sums of values: of codes, of minima (a number a group), of raw rows.
  [[nodiscard]] float* code_sums() const { return memory.out; }
  [[nodiscard]] float* minimum_sums() const { return memory.out + rows() * head_dim; }
  [[nodiscard]] float* raw_sums() const { return memory.out + 2 * rows() * head_dim; }
};

// Calls fn(first, number of keys) for each block of 16 positions that the tile sees.
template <class Fn>
void for_each_block(const Tile& tile, const Fn& fn) {
  for (std::int64_t first = 0; first < tile.num_keys(); first += kKvBlockTokens) {
    fn(first, std::min<std::int64_t>(kKvBlockTokens, tile.num_keys() - first));
  }
}

// query_sums[row, group] = dot(ones, q)
void add_up_queries(const Work& w, float* query_sums) {
  std::array<float, 128> ones;
  ones.fill(1.0F);
  for (int group = 0; group < w.num_groups(); ++group) {
    w.loops.dots({w.memory.q + group * w.kv_group, w.head_dim, w.rows(), DType::F32, ones.data(), 0,
                  1, w.kv_group, query_sums + group, w.num_groups()});
  }
}

// scores[row, first + i] = the dot product of a coded key: the sum over its groups.
void score_codes(const Work& w, std::int64_t first, const float* query_sums) {
  w.head.codes(KvPart::Key, first, w.memory.keys);
  const BlockParams params = w.head.params(KvPart::Key, first);
  for (int group = 0; group < w.num_groups(); ++group) {
    const int first_dim = group * w.kv_group;
    float* dots = w.spare(group);
    w.loops.dots({w.memory.q + first_dim, w.head_dim, w.rows(), DType::F32,
                  w.memory.keys + first_dim, w.head_dim, kKvBlockTokens, w.kv_group, dots,
                  kKvBlockTokens});
    const auto& scales = params.scales[static_cast<std::size_t>(group)];
    const auto& minima = params.minima[static_cast<std::size_t>(group)];
    for (int row = 0; row < w.rows(); ++row, dots += kKvBlockTokens) {
      float* scores = w.memory.scores + row * w.tile.num_keys() + first;
      const float query_sum = query_sums[row * w.num_groups() + group];
      for (std::size_t i = 0; i < kKvBlockTokens; ++i) {
        const float part = scales[i] * dots[i] + minima[i] * query_sum;
        scores[i] = group == 0 ? part : scores[i] + part;
      }
    }
  }
}

void score(const Work& w) {
  // The sums of codes are not needed before all scores are there.
  float* query_sums = w.code_sums();
  add_up_queries(w, query_sums);
  for_each_block(w.tile, [&](std::int64_t first, std::int64_t count) {
    if (w.head.is_coded(first)) {
      score_codes(w, first, query_sums);
      return;
    }
    w.head.raw_rows(KvPart::Key, first, count, w.memory.keys);
    w.loops.dots({w.memory.q, w.head_dim, w.rows(), DType::F32, w.memory.keys, w.head_dim, count,
                  w.head_dim, w.memory.scores + first, w.tile.num_keys()});
  });
}

// Adds F16(p * scale) * code and p * minimum of 16 coded values.
void add_coded_values(const Work& w, std::int64_t first) {
  w.head.codes(KvPart::Value, first, w.memory.keys);
  const BlockParams params = w.head.params(KvPart::Value, first);
  const float* p = w.memory.scores + first;
  const std::int64_t stride = w.tile.num_keys();
  for (int group = 0; group < w.num_groups(); ++group) {
    const auto& scales = params.scales[static_cast<std::size_t>(group)];
    float* factors = w.spare(group);
    for (int row = 0; row < w.rows(); ++row) {
      for (std::size_t i = 0; i < kKvBlockTokens; ++i) {
        factors[row * kKvBlockTokens + static_cast<int>(i)] =
            round_to_f16(p[row * stride + static_cast<std::int64_t>(i)] * scales[i]);
      }
    }
    const int first_dim = group * w.kv_group;
    w.loops.add_weighted_rows({factors, kKvBlockTokens, w.memory.keys + first_dim, w.head_dim,
                               kKvBlockTokens, w.kv_group, w.code_sums() + first_dim, w.head_dim,
                               w.rows()});
    w.loops.add_weighted_rows({p, stride, params.minima[static_cast<std::size_t>(group)].data(), 1,
                               kKvBlockTokens, 1, w.minimum_sums() + group, w.num_groups(),
                               w.rows()});
  }
}

// sums[row] = the sum of p over coded keys, and that over raw ones, added.
void add_up_probabilities(const Work& w, float* sums) {
  float* raw = sums + w.rows();
  std::fill_n(sums, 2 * w.rows(), 0.0F);
  const std::int64_t first_coded = KvHeadInt4::first_coded();
  const std::int64_t end_coded = w.head.end_coded();
  add_probabilities(w.tile, w.memory.scores, first_coded, end_coded, sums);
  add_probabilities(w.tile, w.memory.scores, 0, first_coded, raw);
  add_probabilities(w.tile, w.memory.scores, end_coded, w.tile.num_keys(), raw);
  for (int row = 0; row < w.rows(); ++row) sums[row] += raw[row];
}

void weigh_values(const Work& w) {
  std::fill_n(w.memory.out, 3 * w.rows() * w.head_dim, 0.0F);
  for_each_block(w.tile, [&](std::int64_t first, std::int64_t count) {
    if (w.head.is_coded(first)) {
      add_coded_values(w, first);
      return;
    }
    round_probabilities(w.tile, first, first + count, w.memory.scores);
    w.head.raw_rows(KvPart::Value, first, count, w.memory.keys);
    add_values(w.loops, w.tile, w.memory.scores, first, count, w.memory.keys, w.head_dim,
               w.raw_sums());
  });
  for (int row = 0; row < w.rows(); ++row) {
    for (int d = 0; d < w.head_dim; ++d) {
      const int i = row * w.head_dim + d;
      const float minimum = w.minimum_sums()[row * w.num_groups() + d / w.kv_group];
      w.memory.out[i] = (w.code_sums()[i] + minimum) + w.raw_sums()[i];
    }
  }
}

}  // namespace

void attend_to_codes(const VectorLoops& loops, const AttentionArgs& a, const Tile& tile,
                     const KvHeadInt4& head, const TileMemory& memory) {
  const Work w = {loops, tile, head, memory, a.head_dim, std::get<KvPagesInt4>(a.kv).page.kv_group};
  score(w);
  softmax_numerators(loops, tile, a.head_dim, memory.scores);
  add_up_probabilities(w, memory.sums);
  weigh_values(w);
}

}  // namespace fut::cpu
