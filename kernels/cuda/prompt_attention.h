// Attention of prompts on the GPU: sizes, arguments, and the launches behind attention_ops.h. Includes no
// CUDA header.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch_context.h"
#include "kernels/ops.h"

namespace fut::cuda {

inline constexpr int kTileQueries =
    128;  // rows of a tile: tokens times the heads that share a KV head
inline constexpr int kTileKeys = 128;   // keys that are taken at a time, from a multiple of it on
inline constexpr int kQueryGroups = 2;  // warpgroups of 64 rows each
inline constexpr int kPromptAttentionThreads = 128 * (1 + kQueryGroups);
static_assert(kTileKeys == 2 * layout::kPageTokens && kTileQueries == 64 * kQueryGroups);

struct PromptAttentionArgs {
  RaggedBatch batch;
  layout::KvPageDense page;
  int heads = 1;            // query heads that share a KV head
  int tokens_per_tile = 1;  // with all of these heads they fill the rows
  // Pages of numbers are found by the batch's table; else (history out of an INT4 cache, widened) they
  // lie in the order of that table.
  bool listed = true;
  // The step's own keys are read from k and v, from the first multiple of kTileKeys on.
  bool direct = false;
  float scale = 0;  // of scores, which are powers of two: log2(e) / sqrt(D)
  void* out = nullptr;
  std::int64_t out_stride = 0;
  DType out_dtype = DType::BF16;
  bool out_in_sixteens = false;       // rows of out lie at multiples of 16 bytes
  const float* out_scales = nullptr;  // E4M3
  unsigned* next_tile = nullptr;      // 0 before and after
  unsigned long long* saturated = nullptr;
};

// What the kernel takes: head_dim 64 or 128, up to 64 query heads a KV head, caches that lie at
// multiples of 16 bytes and have less than 2^31 rows; with an INT4 cache BF16 operands. Throws.
void check_prompt_attention(const AttentionArgs& a);

// The arguments, but for what the launch has to find in memory.
[[nodiscard]] PromptAttentionArgs prompt_attention_args(const AttentionArgs& a);

// Whether rows of BF16 can be read by the tensor memory engine as they lie.
[[nodiscard]] bool attention_rows_readable(const ConstActivationView& rows);

// q rounded to BF16, rows one behind the other.
[[nodiscard]] ConstActivationView round_queries(const AttentionArgs& a, LaunchContext& context);

// Pages of BF16 numbers in the order of the batch's page table, out of an INT4 cache and the step's rows:
// of a sequence those of its history, to the end of a tile of keys, or (`whole`) all. Zeros behind the last
// position.
[[nodiscard]] std::uint16_t* widen_history(const AttentionArgs& a, const KvPagesInt4& kv,
                                           bool whole, LaunchContext& context);

// What `attention` stores in an INT4 cache, of BF16 k and v. Nobody may read the cache of these
// sequences any more: the launch waits for those before it.
void store_step_rows(const AttentionArgs& a, const KvPagesInt4& kv, LaunchContext& context);

}  // namespace fut::cuda
