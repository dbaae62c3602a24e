// What attention of prompts reads where it cannot read what is there: history of an INT4 cache widened to
// pages of BF16, queries rounded to BF16.
// launch  history: a block takes page after page of a sequence and KV head, all blocks some thousand; those
//         without work leave. Queries: a block for each token. Dependent launches
// bound   memory: for each number of the history half a byte in and two out
#include <algorithm>

#include "kernels/cuda/kv_rows.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prompt_attention.h"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/numeric/formats.h"

namespace fut::cuda {
namespace {

constexpr int kBlocks = 1024;  // that a launch aims at
constexpr int kQueryThreads = 256;

struct WidenArgs {
  RaggedBatch batch;
  layout::KvPageDense page;
  std::uint16_t* pages = nullptr;
  bool whole = false;
};

__device__ KvSpan span_of(const RaggedBatch& batch, int s) {
  KvSpan span;
  span.pages = batch.page_table + batch.kv_indptr[s];
  span.raw_slot = batch.raw_slots[s];
  span.first_token = batch.q_indptr[s];
  span.end = batch.kv_lengths[s];
  span.begin = span.end - (batch.q_indptr[s + 1] - span.first_token);
  return span;
}

// 64 rows of one part, one behind the other.
template <int kHeadDim, int kThreads>
__device__ __forceinline__ void store_page(std::uint16_t* to, const std::uint16_t* rows) {
  constexpr int kChunks = kHeadDim / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < layout::kPageTokens * kChunks; i += kThreads) {
    reinterpret_cast<uint4*>(to)[i] = *reinterpret_cast<const uint4*>(
        rows + i / kChunks * KvTile<kHeadDim>::kStride + i % kChunks * 8);
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(32 * CodedRows<kHeadDim>::kWarps)
    widen_kernel(const __grid_constant__ WidenArgs a,
                 const __grid_constant__ CodedRows<kHeadDim> rows) {
  __shared__ KvTile<kHeadDim> shared;
  ptx::take_turn();
  const auto s = static_cast<int>(blockIdx.y);
  const auto head = static_cast<int>(blockIdx.z);
  const KvSpan span = span_of(a.batch, s);
  const int tiles = (span.begin + kTileKeys - 1) / kTileKeys;
  const int end = a.whole ? span.end : min(span.end, tiles * kTileKeys);
  std::uint16_t* pages = a.pages + a.batch.kv_indptr[s] * a.page.elements();
  for (int i = static_cast<int>(blockIdx.x); i * layout::kPageTokens < end;
       i += static_cast<int>(gridDim.x)) {
    __syncthreads();  // the page before is stored
    rows.load(span, head, i * layout::kPageTokens, shared);
    __syncthreads();
    constexpr int kThreads = 32 * CodedRows<kHeadDim>::kWarps;
    std::uint16_t* page = pages + i * a.page.elements();
    store_page<kHeadDim, kThreads>(page + a.page.k_offset(head, 0), shared.keys);
    store_page<kHeadDim, kThreads>(page + a.page.v_offset(head, 0), shared.values);
  }
}

template <int kHeadDim>
void launch_widen(const AttentionArgs& a, const KvPagesInt4& kv, const WidenArgs& args,
                  LaunchContext& context) {
  const auto step = [](const ConstActivationView& rows) {
    return StepRows{static_cast<const std::uint16_t*>(rows.data), rows.row_stride};
  };
  // All is copied where the step's rows cannot be read sixteen bytes at a time.
  const bool aligned = !args.whole;
  const CodedRows<kHeadDim> rows = {kv.data,   kv.page,   kv.raw, kv.raw_rows,
                                    step(a.k), step(a.v), aligned};
  const int others = a.batch.num_sequences * a.num_kv_heads;
  launch_dependent(
      "attention: widening history", widen_kernel<kHeadDim>,
      {dim3(static_cast<unsigned>(std::max(1, kBlocks / others)),
            static_cast<unsigned>(a.batch.num_sequences), static_cast<unsigned>(a.num_kv_heads)),
       dim3(32 * CodedRows<kHeadDim>::kWarps)},
      context.handle(), args, rows);
}

__global__ void __launch_bounds__(kQueryThreads)
    round_kernel(const __grid_constant__ ConstActivationView q, std::uint16_t* out) {
  ptx::take_turn();
  const std::int64_t token = blockIdx.x;
  for (int i = static_cast<int>(threadIdx.x); i < q.cols; i += kQueryThreads) {
    const std::int64_t from = token * q.row_stride + i;
    out[token * q.cols + i] = q.dtype == DType::F32
                                  ? f32_to_bf16(static_cast<const float*>(q.data)[from])
                                  : static_cast<const std::uint16_t*>(q.data)[from];
  }
}

}  // namespace

std::uint16_t* widen_history(const AttentionArgs& a, const KvPagesInt4& kv, bool whole,
                             LaunchContext& context) {
  WidenArgs args;
  args.batch = a.batch;
  args.page = {a.num_kv_heads, a.head_dim};
  args.whole = whole;
  args.pages = static_cast<std::uint16_t*>(context.scratch(
      ScratchUse::AttentionHistory, layout::widened_history_bytes(args.page, kv.num_pages)));
  if (a.head_dim == 64) {
    launch_widen<64>(a, kv, args, context);
  } else {
    launch_widen<128>(a, kv, args, context);
  }
  return args.pages;
}

ConstActivationView round_queries(const AttentionArgs& a, LaunchContext& context) {
  auto* out = static_cast<std::uint16_t*>(context.scratch(
      ScratchUse::AttentionQueries, static_cast<std::size_t>(2 * a.q.rows * a.q.cols)));
  launch_dependent("attention: rounding queries", round_kernel,
                   {dim3(static_cast<unsigned>(a.q.rows)), dim3(kQueryThreads)}, context.handle(),
                   a.q, out);
  return {out, DType::BF16, a.q.rows, a.q.cols, a.q.cols};
}

}  // namespace fut::cuda
