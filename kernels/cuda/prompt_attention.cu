// attention of any step but decode on the GPU. Contract in ops.h.
// launch  a block for each multiprocessor, which takes tiles as it gets to them; with an INT4 cache a
//         kernel before it that widens history to BF16, and one behind it that stores the step's keys
//         and values. Dependent launches
// bound   arithmetic: 4 * D * Nq * (keys seen by all tokens), and what tiles at the causal edge do in vain
#include <algorithm>

#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prompt_attention.cuh"
#include "kernels/cuda/tensor_map.h"

namespace fut::cuda {
namespace {

// Rows of BF16, a page's tokens of them at a time.
CUtensorMap rows_map(const ConstActivationView& rows) {
  TensorMapShape shape;
  shape.data = rows.data;
  shape.element_bytes = 2;
  shape.rows = rows.rows;
  shape.cols = rows.cols;
  shape.stride_bytes = 2 * rows.row_stride;
  shape.box_rows = layout::kPageTokens;
  return make_tensor_map(shape);
}

// Rows of keys and values of all pages.
CUtensorMap pages_map(const void* data, std::int64_t num_pages, const layout::KvPageDense& page) {
  return rows_map({data, DType::BF16, num_pages * page.elements() / page.head_dim, page.head_dim,
                   page.head_dim});
}

CUtensorMap queries_map(const AttentionArgs& a, const PromptAttentionArgs& args,
                        LaunchContext& context) {
  const ConstActivationView q = attention_rows_readable(a.q) ? a.q : round_queries(a, context);
  HeadsMapShape shape;
  shape.data = q.data;
  shape.tokens = q.rows;
  shape.heads = a.num_q_heads;
  shape.head_dim = a.head_dim;
  shape.stride_bytes = 2 * q.row_stride;
  shape.box_tokens = args.tokens_per_tile;
  shape.box_heads = args.heads;
  return make_heads_map(shape);
}

// Where keys and values are.
void set_keys(const AttentionArgs&, const KvPages& kv, PromptAttentionArgs& args,
              PromptAttentionMaps& maps, LaunchContext&) {
  maps.pages = maps.k = maps.v = pages_map(kv.data, kv.num_pages, args.page);
}
void set_keys(const AttentionArgs& a, const KvPagesInt4& kv, PromptAttentionArgs& args,
              PromptAttentionMaps& maps, LaunchContext& context) {
  args.listed = false;
  args.direct = attention_rows_readable(a.k) && attention_rows_readable(a.v);
  maps.pages = maps.k = maps.v =
      pages_map(widen_history(a, kv, !args.direct, context), kv.num_pages, args.page);
  if (!args.direct) return;
  maps.k = rows_map(a.k);
  maps.v = rows_map(a.v);
}

template <int kHeadDim>
void launch(const PromptAttentionMaps& maps, const PromptAttentionArgs& args,
            LaunchContext& context) {
  using Shared = PromptAttentionShared<kHeadDim>;
  const auto kernel = prompt_attention_kernel<kHeadDim>;
  FUT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      Shared::kDynamicBytes));
  // Each sequence may leave its last tile all but empty.
  const int others = args.batch.num_tokens - args.batch.num_sequences;
  const int most_tiles =
      args.batch.num_sequences + (others > 0 ? others / args.tokens_per_tile : 0);
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(
      std::min(context.machine().num_multiprocessors, most_tiles * args.page.num_kv_heads));
  shape.block = kPromptAttentionThreads;
  shape.shared_bytes = Shared::kDynamicBytes;
  launch_dependent("attention", kernel, shape, context.handle(), maps, args);
}

}  // namespace

void prompt_attention(const AttentionArgs& a, LaunchContext& context) {
  check_prompt_attention(a);
  PromptAttentionArgs args = prompt_attention_args(a);
  args.next_tile =
      static_cast<unsigned*>(context.scratch(ScratchUse::AttentionTiles, sizeof(unsigned)));
  // In the order of SaturationCounts.
  args.saturated = reinterpret_cast<unsigned long long*>(context.saturations() + 1);
  PromptAttentionMaps maps;
  maps.q = queries_map(a, args, context);
  std::visit([&](const auto& kv) { set_keys(a, kv, args, maps, context); }, a.kv);
  if (a.head_dim == 64) {
    launch<64>(maps, args, context);
  } else {
    launch<128>(maps, args, context);
  }
  if (const auto* int4 = std::get_if<KvPagesInt4>(&a.kv)) store_step_rows(a, *int4, context);
}

}  // namespace fut::cuda
