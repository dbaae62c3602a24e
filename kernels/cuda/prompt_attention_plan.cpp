// What attention of prompts on the GPU asks beyond the contract, and its arguments. Here because sources
// that nvcc compiles do without the error builders.
#include <climits>
#include <cmath>
#include <numbers>

#include "kernels/check.h"
#include "kernels/cuda/prompt_attention.h"

namespace fut::cuda {
namespace {

bool is_aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

void check_aligned(const char* name, const void* data) {
  FUT_CHECK(is_aligned(data), "attention: {} lies at {}, must be 16-byte aligned", name, data);
}

}  // namespace

void check_prompt_attention(const AttentionArgs& a) {
  constexpr int kMostHeads = 64;
  FUT_CHECK(a.head_dim == 64 || a.head_dim == 128,
            "attention: head_dim is {}, the GPU takes 64 and 128", a.head_dim);
  FUT_CHECK(a.num_q_heads / a.num_kv_heads <= kMostHeads,
            "attention: {} query heads share {} KV heads, the GPU takes {} for each at most",
            a.num_q_heads, a.num_kv_heads, kMostHeads);
  const auto* int4 = std::get_if<KvPagesInt4>(&a.kv);
  const std::int64_t pages = int4 != nullptr ? int4->num_pages : std::get<KvPages>(a.kv).num_pages;
  const std::int64_t rows = pages * 2 * a.num_kv_heads * layout::kPageTokens;
  FUT_CHECK(rows <= INT_MAX, "attention: a cache of {} rows, the GPU takes {}", rows, INT_MAX);
  if (int4 == nullptr) {
    check_aligned("kv", std::get<KvPages>(a.kv).data);
    return;
  }
  // F32 operands are decode: a step of one token for each sequence.
  FUT_CHECK(
      a.q.dtype == DType::BF16,
      "attention: q is {} with an INT4 cache and {} tokens of {} sequences; the GPU takes F32 "
      "with one token a sequence alone",
      dtype_name(a.q.dtype), a.batch.num_tokens, a.batch.num_sequences);
  check_aligned("kv.raw", int4->raw);
}

PromptAttentionArgs prompt_attention_args(const AttentionArgs& a) {
  PromptAttentionArgs r;
  r.batch = a.batch;
  r.page = {a.num_kv_heads, a.head_dim};
  r.heads = a.num_q_heads / a.num_kv_heads;
  r.tokens_per_tile = kTileQueries / r.heads;
  r.scale = static_cast<float>(std::numbers::log2e / std::sqrt(static_cast<double>(a.head_dim)));
  r.out = a.out.data;
  r.out_stride = a.out.row_stride;
  r.out_dtype = a.out.dtype;
  r.out_in_sixteens = is_aligned(a.out.data) &&
                      a.out.row_stride * static_cast<int>(dtype_bytes(a.out.dtype)) % 16 == 0;
  r.out_scales = a.out_scales;
  return r;
}

bool attention_rows_readable(const ConstActivationView& rows) {
  return rows.dtype == DType::BF16 && is_aligned(rows.data) && rows.row_stride % 8 == 0;
}

}  // namespace fut::cuda
