// attention on the CPU: for each tile of queries, scores of all keys chunk by chunk, then softmax in
// two passes, then the weighted sum of values chunk by chunk. An INT4 cache is written afterwards,
// when nobody reads it any more.
#include <algorithm>

#include "kernels/cpu/attention_int4.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/kv_store.h"
#include "kernels/cpu/ragged.h"
#include "kernels/numeric/formats.h"
#include "kernels/numeric/hadamard.h"

namespace fut::cpu {
namespace {

using layout::KvPart;

// Calls fn(first, number of keys) for each chunk of keys that the tile sees: each lies in one page.
template <class Fn>
void for_each_chunk(const Tile& tile, const Fn& fn) {
  for (std::int64_t first = 0; first < tile.num_keys(); first += kChunkKeys) {
    fn(first, std::min(kChunkKeys, tile.num_keys() - first));
  }
}

// Where keys come from: rows(part, first, count, buffer) gives rows first .. first + count - 1 of
// the tile's head as floats without gaps, in `buffer` or where they lie.
struct RowsOfPages {
  const VectorLoops& loops;
  const AttentionArgs& a;
  const KvPages& kv;
  const Tile& tile;

  const float* operator()(KvPart part, std::int64_t first, std::int64_t count,
                          float* buffer) const {
    const std::int64_t offset =
        part == KvPart::Key ? kv.page.k_offset(tile.kv_head, 0) : kv.page.v_offset(tile.kv_head, 0);
    if (kv.dtype == DType::F32) {
      return page_of_position<float>(a.batch, kv, tile.sequence, first) + offset;
    }
    const auto* page = page_of_position<std::uint16_t>(a.batch, kv, tile.sequence, first);
    loops.widen(kv.dtype, page + offset, count * a.head_dim, buffer);
    return buffer;
  }
};
struct RowsOfCodes {
  const KvHeadInt4& head;

  const float* operator()(KvPart part, std::int64_t first, std::int64_t count,
                          float* buffer) const {
    head.rows(part, first, count, buffer);
    return buffer;
  }
};

// memory.out and memory.sums over rows of numbers; `round` says whether probabilities meet values
// as BF16.
template <class Rows>
void attend_to_numbers(const VectorLoops& loops, const AttentionArgs& a, const Tile& tile,
                       const Rows& rows, bool round, const TileMemory& memory) {
  for_each_chunk(tile, [&](std::int64_t first, std::int64_t count) {
    loops.dots({memory.q, a.head_dim, tile.rows(), DType::F32,
                rows(KvPart::Key, first, count, memory.keys), a.head_dim, count, a.head_dim,
                memory.scores + first, tile.num_keys()});
  });
  softmax_numerators(loops, tile, a.head_dim, memory.scores);
  std::fill_n(memory.sums, tile.rows(), 0.0F);
  add_probabilities(tile, memory.scores, 0, tile.num_keys(), memory.sums);
  if (round) round_probabilities(tile, 0, tile.num_keys(), memory.scores);
  std::fill_n(memory.out, std::int64_t{tile.rows()} * a.head_dim, 0.0F);
  for_each_chunk(tile, [&](std::int64_t first, std::int64_t count) {
    add_values(loops, tile, memory.scores, first, count,
               rows(KvPart::Value, first, count, memory.keys), a.head_dim, memory.out);
  });
}

void attend(const VectorLoops& loops, const AttentionArgs& a, const Tile& tile,
            const StepRows& step, const TileMemory& memory) {
  if (const auto* pages = std::get_if<KvPages>(&a.kv)) {
    const bool round = a.q.dtype != DType::F32 || pages->dtype != DType::F32;
    load_queries(a, tile, round, memory.q);
    attend_to_numbers(loops, a, tile, RowsOfPages{loops, a, *pages, tile}, round, memory);
    return;
  }
  const KvHeadInt4 head(loops, std::get<KvPagesInt4>(a.kv), a.batch, step, tile.sequence,
                        tile.kv_head);
  load_queries(a, tile, true, memory.q);
  if (a.q.dtype == DType::F32) {
    attend_to_codes(loops, a, tile, head, memory);
  } else {
    attend_to_numbers(loops, a, tile, RowsOfCodes{head}, true, memory);
  }
}

// One row of k or v as attention reads it: rotated if asked for, rounded to BF16.
void load_step_row(const ConstActivationView& rows, std::int64_t token, int rotation_block,
                   float* out) {
  if (rows.dtype == DType::BF16) {
    const auto* row = rows.row<std::uint16_t>(token);
    std::transform(row, row + rows.cols, out, bf16_to_f32);
    return;
  }
  std::copy_n(rows.row<float>(token), rows.cols, out);
  if (rotation_block > 0) hadamard_blocks(out, rows.cols, rotation_block);
  round_to_bf16(out, rows.cols);
}

// The step's k and v, to memory of twice a.k's size.
StepRows load_step_rows(ThreadPool& pool, const AttentionArgs& a, float* memory) {
  float* values = memory + a.k.rows * a.k.cols;
  constexpr std::int64_t kWorkPerNumber = 16;
  pool.parallel_for(a.k.rows, a.k.cols * kWorkPerNumber,
                    [&](std::int64_t begin, std::int64_t end, int) {
                      for (std::int64_t t = begin; t < end; ++t) {
                        load_step_row(a.k, t, a.rotation_block, memory + t * a.k.cols);
                        load_step_row(a.v, t, 0, values + t * a.v.cols);
                      }
                    });
  return {memory, values};
}

void store_step_rows(Workers& workers, const AttentionArgs& a, const KvPagesInt4& kv,
                     const StepRows& step) {
  constexpr std::int64_t kWorkPerNumber = 32;
  const std::int64_t heads = std::int64_t{a.batch.num_sequences} * a.num_kv_heads;
  const std::int64_t work = a.k.rows * a.k.cols * kWorkPerNumber / heads + 1;
  workers.pool.parallel_for(heads, work, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const KvHeadInt4 head(workers.loops, kv, a.batch, step, static_cast<int>(i / a.num_kv_heads),
                            static_cast<int>(i % a.num_kv_heads));
      head.store();
    }
  });
}

}  // namespace

void attention(Workers& workers, const AttentionArgs& a) {
  check(a);
  std::visit([&](const auto& kv) { check_ragged("attention", a.batch, kv); }, a.kv);
  const auto* int4 = std::get_if<KvPagesInt4>(&a.kv);
  const int threads = workers.pool.num_threads();
  const Tiling tiling(a, threads);
  const std::int64_t own_elements = tile_memory_elements(tiling, a);
  const std::int64_t step_elements = int4 == nullptr ? 0 : 2 * a.k.rows * a.k.cols;
  workers.scratch.reserve(threads * own_elements + step_elements, 2);
  float* own = workers.scratch.take(threads * own_elements);
  StepRows step;
  if (int4 != nullptr) {
    step = load_step_rows(workers.pool, a, workers.scratch.take(step_elements));
  }

  const std::int64_t work = 2 * a.head_dim * tiling.max_scores();
  workers.pool.parallel_for(
      tiling.size(), work, [&](std::int64_t begin, std::int64_t end, int thread) {
        const TileMemory memory = tile_memory(tiling, a, own + thread * own_elements);
        for (std::int64_t i = begin; i < end; ++i) {
          const Tile tile = tiling.at(i);
          attend(workers.loops, a, tile, step, memory);
          add_clipped(workers.saturations.attention_outputs,
                      store_outputs(a, tile, memory.out, memory.sums));
        }
      });
  if (int4 != nullptr) store_step_rows(workers, a, *int4, step);
}

}  // namespace fut::cpu
