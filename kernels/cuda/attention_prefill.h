// Prefill attention on the GPU: the steps behind attention_ops.h. Includes no CUDA header.
#pragma once

#include "kernels/cuda/launch_context.h"
#include "kernels/ops.h"

namespace fut::cuda {

// What the kernels below take: head_dim 64 or 128, up to 64 query heads a KV head, caches that lie at
// multiples of 16 bytes; with an INT4 cache BF16 operands. Throws.
void check_attention_prefill(const AttentionArgs& a);

// What `attention` stores in an INT4 cache, of BF16 k and v. Nobody may read the cache of these
// sequences any more: the launch waits for those before it.
void store_step_rows(const AttentionArgs& a, const KvPagesInt4& kv, LaunchContext& context);

}  // namespace fut::cuda
