// attention of any step on the GPU. Contract in ops.h.
// launch  blocks of 4 or 8 warps, one for each KV head and tile of 16 rows a warp (tokens times the
//         heads that share it); which sequence's tile it is, a block reads from q_indptr, and those
//         beyond the last tile leave. Tiles of later tokens see more keys: first. Dependent launch
// bound   arithmetic: 4 * D * Nq * (keys seen by all tokens), half of it wasted in tiles at the edge
// A row's sums run page by page, so its bits depend on its own sequence alone.
#include <cmath>

#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/attention_prefill.cuh"
#include "kernels/cuda/attention_prefill.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"

namespace fut::cuda {
namespace {

template <int kHeadDim, class Rows>
__global__ void __launch_bounds__(32 * Rows::kWarps, 8 / Rows::kWarps)
    attention_prefill_kernel(PrefillArgs a, Rows kv) {
  __shared__ KvTile<kHeadDim> shared;
  ptx::take_turn();
  const int kv_head = static_cast<int>(blockIdx.y);
  const QueryTile tile = find_query_tile(a, static_cast<int>(gridDim.x - 1 - blockIdx.x));
  if (tile.num_tokens == 0) return;
  const KvSpan span = span_of(a.batch, tile);
  const int first_row =
      static_cast<int>(threadIdx.x) / 32 * kWarpRows + static_cast<int>(threadIdx.x) % 32 / 4;
  const QueryRow rows[2] = {row_of(a, tile, kv_head, first_row),
                            row_of(a, tile, kv_head, first_row + 8)};
  std::uint32_t q[kHeadDim / 16][4];
  load_queries<kHeadDim>(a, rows, q);
  Accumulator<kHeadDim> own;
  for (int first = 0; first < span.end; first += kPrefillKeys) {
    __syncthreads();  // the page before is not read any more
    kv.load(span, kv_head, first, shared);
    __syncthreads();
    float scores[kPrefillKeys / 8][4] = {};
    multiply_keys<kHeadDim>(q, shared.keys, scores);
    scale_and_mask(scores, a.scale, rows, first);
    softmax_step<kHeadDim>(scores, own);
    multiply_values<kHeadDim>(scores, shared.values, own.out);
  }
  store_outputs<kHeadDim>(a, rows, kv_head, own);
}

template <int kHeadDim, class Rows>
void launch(const AttentionArgs& a, const Rows& rows, LaunchContext& context) {
  PrefillArgs args;
  args.q = a.q;
  args.out = a.out;
  args.out_scales = a.out_scales;
  args.batch = a.batch;
  args.heads = a.num_q_heads / a.num_kv_heads;
  args.tokens_per_tile = Rows::kWarps * kWarpRows / args.heads;
  args.scale = 1.0F / std::sqrt(static_cast<float>(a.head_dim));
  // In the order of SaturationCounts.
  args.saturated = reinterpret_cast<unsigned long long*>(context.saturations() + 1);
  // Each sequence may leave its last tile all but empty.
  const int others = a.batch.num_tokens - a.batch.num_sequences;
  const int most_tiles = a.batch.num_sequences + (others > 0 ? others / args.tokens_per_tile : 0);
  launch_dependent("attention", attention_prefill_kernel<kHeadDim, Rows>,
                   {dim3(static_cast<unsigned>(most_tiles), static_cast<unsigned>(a.num_kv_heads)),
                    dim3(32 * Rows::kWarps)},
                   context.handle(), args, rows);
}

template <int kHeadDim>
void launch_over(const AttentionArgs& a, const KvPages& kv, LaunchContext& context) {
  launch<kHeadDim>(a, NumberRows<kHeadDim>{static_cast<const std::uint16_t*>(kv.data), kv.page},
                   context);
}

template <int kHeadDim>
void launch_over(const AttentionArgs& a, const KvPagesInt4& kv, LaunchContext& context) {
  const auto aligned = [](const ConstActivationView& rows) {
    return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.row_stride % 8 == 0;
  };
  const auto step = [](const ConstActivationView& rows) {
    return StepRows{static_cast<const std::uint16_t*>(rows.data), rows.row_stride};
  };
  launch<kHeadDim>(a,
                   CodedRows<kHeadDim>{kv.data, kv.page, kv.raw, kv.raw_rows, step(a.k), step(a.v),
                                       aligned(a.k) && aligned(a.v)},
                   context);
}

}  // namespace

void attention_prefill(const AttentionArgs& a, LaunchContext& context) {
  check_attention_prefill(a);
  std::visit(
      [&](const auto& kv) {
        if (a.head_dim == 64) {
          launch_over<64>(a, kv, context);
        } else {
          launch_over<128>(a, kv, context);
        }
      },
      a.kv);
  if (const auto* int4 = std::get_if<KvPagesInt4>(&a.kv)) store_step_rows(a, *int4, context);
}

}  // namespace fut::cuda
