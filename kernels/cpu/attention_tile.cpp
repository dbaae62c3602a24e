// Cutting a step into tiles, softmax of a tile, and its results in the type that is asked for.
#include "kernels/cpu/attention_tile.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/kv_store.h"
#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/formats.h"
#include "kernels/numeric/hadamard.h"
#include "kernels/numeric/kv_int4.h"

namespace fut::cpu {
namespace {

// Enough rows to use a widened key several times, few enough for their sums to stay in the cache.
constexpr int kTileRows = 16;

constexpr std::int64_t kLineFloats = 16;

std::int64_t whole_lines(std::int64_t elements) {
  return (elements + kLineFloats - 1) / kLineFloats * kLineFloats;
}

// Of one sequence.
int most_tokens(const RaggedBatch& batch) {
  int most = 1;
  for (int s = 0; s < batch.num_sequences; ++s) {
    most = std::max(most, batch.q_indptr[s + 1] - batch.q_indptr[s]);
  }
  return most;
}

// How many groups of dims have parameters of their own; 0 without codes.
int groups_of(const KvCacheView& kv) {
  const auto* int4 = std::get_if<KvPagesInt4>(&kv);
  return int4 == nullptr ? 0 : int4->page.num_groups();
}

}  // namespace

Tiling::Tiling(const AttentionArgs& a, int num_threads)
    : heads_per_kv_head_(a.num_q_heads / a.num_kv_heads),
      longest_(*std::max_element(a.batch.kv_lengths, a.batch.kv_lengths + a.batch.num_sequences)) {
  // One pass over the keys serves all heads of a KV head and some tokens, unless that leaves threads
  // idle.
  const std::int64_t whole_groups = a.q.rows * a.num_kv_heads;
  heads_per_group_ = whole_groups >= num_threads ? heads_per_kv_head_ : 1;
  groups_per_token_ = a.num_q_heads / heads_per_group_;
  const std::int64_t groups_per_thread = a.q.rows * groups_per_token_ / num_threads;
  const std::int64_t tokens =
      std::min<std::int64_t>(kTileRows / heads_per_group_, groups_per_thread);
  tokens_per_tile_ = static_cast<int>(std::clamp<std::int64_t>(tokens, 1, most_tokens(a.batch)));
  for (int s = 0; s < a.batch.num_sequences; ++s) {
    const std::int64_t end = a.batch.q_indptr[s + 1];
    for (std::int64_t t = a.batch.q_indptr[s]; t < end; t += tokens_per_tile_) {
      spans_.push_back(
          {.sequence = s,
           .first_token = t,
           .num_tokens = static_cast<int>(std::min<std::int64_t>(tokens_per_tile_, end - t)),
           .first_position = a.batch.positions[t]});
    }
  }
}

Tile Tiling::at(std::int64_t i) const {
  const Span& span = spans_[static_cast<std::size_t>(i / groups_per_token_)];
  const int first_q_head = static_cast<int>(i % groups_per_token_) * heads_per_group_;
  return {.sequence = span.sequence,
          .first_token = span.first_token,
          .num_tokens = span.num_tokens,
          .first_position = span.first_position,
          .first_q_head = first_q_head,
          .num_heads = heads_per_group_,
          .kv_head = first_q_head / heads_per_kv_head_};
}

std::int64_t tile_memory_elements(const Tiling& tiling, const AttentionArgs& a) {
  const std::int64_t rows = tiling.max_rows();
  return whole_lines(rows * a.head_dim) + whole_lines(2 * rows) +
         whole_lines(3 * rows * a.head_dim) + whole_lines(kChunkKeys * a.head_dim) +
         whole_lines(rows * groups_of(a.kv) * layout::KvPageInt4::kBlockTokens) +
         whole_lines(tiling.max_scores());
}

TileMemory tile_memory(const Tiling& tiling, const AttentionArgs& a, float* first) {
  const std::int64_t rows = tiling.max_rows();
  const auto take = [&](std::int64_t elements) {
    float* piece = first;
    first += whole_lines(elements);
    return piece;
  };
  TileMemory memory;
  memory.q = take(rows * a.head_dim);
  memory.sums = take(2 * rows);
  memory.out = take(3 * rows * a.head_dim);
  memory.keys = take(kChunkKeys * a.head_dim);
  memory.spare = take(rows * groups_of(a.kv) * layout::KvPageInt4::kBlockTokens);
  memory.scores = first;
  return memory;
}

void load_queries(const AttentionArgs& a, const Tile& tile, bool round, float* q) {
  const std::int64_t first_col = static_cast<std::int64_t>(tile.first_q_head) * a.head_dim;
  const std::int64_t cols = static_cast<std::int64_t>(tile.num_heads) * a.head_dim;
  for (int t = 0; t < tile.num_tokens; ++t, q += cols) {
    if (a.q.dtype == DType::BF16) {
      const auto* row = a.q.row<std::uint16_t>(tile.first_token + t) + first_col;
      for (std::int64_t i = 0; i < cols; ++i) q[i] = bf16_to_f32(row[i]);
      continue;
    }
    std::copy_n(a.q.row<float>(tile.first_token + t) + first_col, cols, q);
    if (a.rotation_block > 0) hadamard_blocks(q, cols, a.rotation_block);
    if (round) round_to_bf16(q, cols);
  }
}

void softmax_numerators(const VectorLoops& loops, const Tile& tile, int head_dim, float* scores) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  for (int row = 0; row < tile.rows(); ++row, scores += tile.num_keys()) {
    const std::int64_t visible = tile.visible(row / tile.num_heads);
    const float maximum = loops.scale_and_find_maximum(scores, visible, scale);
    loops.exponentials(scores, visible, maximum);
  }
}

// The rows of a token go along together: one addition of a row has to wait for the one before it,
// but not for those of other rows.
void add_probabilities(const Tile& tile, const float* p, std::int64_t first, std::int64_t end,
                       float* sums) {
  const std::int64_t stride = tile.num_keys();
  for (int t = 0; t < tile.num_tokens; ++t) {
    const int first_row = t * tile.num_heads;
    const std::int64_t own_end = std::min(end, tile.visible(t));
    for (std::int64_t i = first; i < own_end; ++i) {
      for (int row = first_row; row < first_row + tile.num_heads; ++row) {
        sums[row] += p[row * stride + i];
      }
    }
  }
}

void round_probabilities(const Tile& tile, std::int64_t first, std::int64_t end, float* p) {
  const std::int64_t stride = tile.num_keys();
  for (int row = 0; row < tile.rows(); ++row) {
    const std::int64_t own_end = std::min(end, tile.visible(row / tile.num_heads));
    if (first < own_end) round_to_bf16(p + row * stride + first, own_end - first);
  }
}

void add_values(const VectorLoops& loops, const Tile& tile, const float* p, std::int64_t first,
                std::int64_t count, const float* values, int head_dim, float* sums) {
  const std::int64_t stride = tile.num_keys();
  const auto add = [&](int first_row, int num_rows, std::int64_t num_values) {
    loops.add_weighted_rows({p + first_row * stride + first, stride, values, head_dim, num_values,
                             head_dim, sums + std::int64_t{first_row} * head_dim, head_dim,
                             num_rows});
  };
  if (first + count <= tile.visible(0)) {
    add(0, tile.rows(), count);
    return;
  }
  for (int t = 0; t < tile.num_tokens; ++t) {
    const std::int64_t own_count = std::min(count, tile.visible(t) - first);
    if (own_count > 0) add(t * tile.num_heads, tile.num_heads, own_count);
  }
}

std::int64_t store_outputs(const AttentionArgs& a, const Tile& tile, const float* numerators,
                           const float* sums) {
  const float scale = a.out_scales == nullptr ? 1.0F : a.out_scales[tile.kv_head];
  std::int64_t saturated = 0;
  for (int row = 0; row < tile.rows(); ++row) {
    const std::int64_t token = tile.first_token + row / tile.num_heads;
    const std::int64_t first_col =
        static_cast<std::int64_t>(tile.first_q_head + row % tile.num_heads) * a.head_dim;
    for (std::int64_t d = 0; d < a.head_dim; ++d) {
      const float value = numerators[row * a.head_dim + d] / sums[row];
      switch (a.out.dtype) {
        case DType::F32:
          a.out.row<float>(token)[first_col + d] = value;
          break;
        case DType::BF16:
          a.out.row<std::uint16_t>(token)[first_col + d] = f32_to_bf16(value);
          break;
        case DType::F16:
          a.out.row<std::uint16_t>(token)[first_col + d] = f32_to_f16_saturating(value);
          break;
        case DType::E4M3:
          saturated += e4m3_saturates(value * scale) ? 1 : 0;
          a.out.row<std::uint8_t>(token)[first_col + d] = f32_to_e4m3(value * scale);
          break;
        case DType::U8:
          break;
      }
    }
  }
  return saturated;
}

}  // namespace fut::cpu
