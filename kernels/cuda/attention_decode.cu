// Launches attention_decode.cuh's kernel: the instance for the shape of the cache, spread over the chip
// according to the size of the batch.
#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/launch.cuh"

namespace fut::cuda {
namespace {

using Kernel = void (*)(AttentionDecodeArgs);

// groups 0: a BF16 cache.
Kernel kernel_for(int head_dim, int groups) {
  if (head_dim == 64) {
    if (groups == 0) return attention_decode_kernel<64, 0>;
    return groups == 1 ? attention_decode_kernel<64, 1> : attention_decode_kernel<64, 2>;
  }
  if (groups == 0) return attention_decode_kernel<128, 0>;
  if (groups == 1) return attention_decode_kernel<128, 1>;
  return groups == 2 ? attention_decode_kernel<128, 2> : attention_decode_kernel<128, 4>;
}

int groups_of(const AttentionArgs& a) {
  const auto* int4 = std::get_if<KvPagesInt4>(&a.kv);
  return int4 == nullptr ? 0 : int4->page.num_groups();
}

void launch(const AttentionArgs& a, LaunchContext& context, Kernel kernel,
            AttentionDistribution d) {
  const auto layout = [&] {
    return attention_layout(a.head_dim, groups_of(a), a.num_q_heads / a.num_kv_heads, d);
  };
  while (layout().bytes > kMaxSharedBytes) {
    if (d.slots > 2) {
      d.slots /= 2;
    } else {
      d.cluster *= 2;  // shorter stacks
    }
  }
  AttentionDecodeArgs args = attention_decode_args(a, d, context.saturations());
  args.layout = layout();
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(d.cluster * a.num_kv_heads),
                    static_cast<unsigned>(a.batch.num_sequences));
  shape.block = static_cast<unsigned>(32 * kAttentionWarps);
  shape.shared_bytes = static_cast<std::size_t>(args.layout.bytes);
  shape.cluster = static_cast<unsigned>(d.cluster);
  launch_dependent("attention", kernel, shape, context.handle(), args);
}

}  // namespace

void attention_decode(const AttentionArgs& a, LaunchContext& context,
                      const AttentionDistribution& distribution) {
  check_attention_decode(a);
  const Kernel kernel = kernel_for(a.head_dim, groups_of(a));
  // The same limit always: another thread's launch of this instance may be under way.
  FUT_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
  launch(a, context, kernel, distribution);
}

void attention_decode(const AttentionArgs& a, LaunchContext& context) {
  if (groups_of(a) > 0 && a.q.dtype == DType::BF16) {
    prompt_attention(a, context);  // the arithmetic of prefill, though the step is one of decode
    return;
  }
  const int items = a.batch.num_sequences * a.num_kv_heads;
  attention_decode(a, context,
                   plan_attention_decode(items, a.num_q_heads / a.num_kv_heads, context.machine()));
}

}  // namespace fut::cuda
