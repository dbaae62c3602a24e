// The two ways of attention on the GPU behind cuda_ops.h. Includes no CUDA header.
#pragma once

#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/launch_context.h"
#include "kernels/ops.h"

namespace fut::cuda {

// A step of one token for each sequence; with an INT4 cache F32 operands alone.
void attention_decode(const AttentionArgs& a, LaunchContext& context);
// The same bits, handed out otherwise: for tests and measurements.
void attention_decode(const AttentionArgs& a, LaunchContext& context,
                      const AttentionDistribution& distribution);
// Any step, but with an INT4 cache BF16 operands alone.
void prompt_attention(const AttentionArgs& a, LaunchContext& context);

}  // namespace fut::cuda
