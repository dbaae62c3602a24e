// Launches attention_decode.cuh's kernel: the instance for the shape of the cache, spread over the chip
// according to the size of the batch and the kind of its contexts.
#include <algorithm>

#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/launch.cuh"

namespace fut::cuda {
namespace {

using Kernel = void (*)(AttentionDecodeArgs);

// groups 0: a BF16 cache.
template <AttentionMeeting kMeeting>
Kernel kernel_for(int head_dim, int groups) {
  if (head_dim == 64) {
    if (groups == 0) return attention_decode_kernel<64, 0, kMeeting>;
    return groups == 1 ? attention_decode_kernel<64, 1, kMeeting>
                       : attention_decode_kernel<64, 2, kMeeting>;
  }
  if (groups == 0) return attention_decode_kernel<128, 0, kMeeting>;
  if (groups == 1) return attention_decode_kernel<128, 1, kMeeting>;
  return groups == 2 ? attention_decode_kernel<128, 2, kMeeting>
                     : attention_decode_kernel<128, 4, kMeeting>;
}

int groups_of(const AttentionArgs& a) {
  const auto* int4 = std::get_if<KvPagesInt4>(&a.kv);
  return int4 == nullptr ? 0 : int4->page.num_groups();
}

// More than half of a multiprocessor's: blocks that meet in memory are to be alone on theirs while others are
// idle. That keeps a projection's block out as well, which takes more than half itself
// (kLeastInt4SharedBytes); which of the two counts for more, a whole step has to tell.
constexpr int kAloneBytes = 116 * 1024;

AttentionScratch scratch_for(const AttentionArgs& a, const AttentionDistribution& d,
                             const AttentionLayout& layout, LaunchContext& context) {
  const auto items = static_cast<std::size_t>(a.batch.num_sequences * a.num_kv_heads);
  const std::size_t states = items * static_cast<std::size_t>(d.blocks * layout.slot_bytes);
  AttentionScratch scratch;
  if (layout.parked > 0) {
    scratch.parked = static_cast<std::uint8_t*>(
        context.scratch(ScratchUse::AttentionParked,
                        states * static_cast<std::size_t>(kAttentionWarps * layout.parked)));
  }
  if (d.meeting == AttentionMeeting::Memory) {
    scratch.parts = static_cast<std::uint8_t*>(context.scratch(ScratchUse::AttentionParts, states));
    scratch.arrivals = static_cast<unsigned*>(
        context.scratch(ScratchUse::AttentionArrivals, items * sizeof(unsigned)));
  }
  return scratch;
}

void launch(const AttentionArgs& a, LaunchContext& context, Kernel kernel,
            const AttentionDistribution& d) {
  const bool in_cluster = d.meeting == AttentionMeeting::Cluster;
  AttentionDecodeArgs args = attention_decode_args(a, d, context.saturations());
  args.layout = attention_layout(a.head_dim, groups_of(a), a.num_q_heads / a.num_kv_heads, d);
  args.scratch = scratch_for(a, d, args.layout, context);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(d.blocks * a.num_kv_heads),
                    static_cast<unsigned>(a.batch.num_sequences));
  shape.block = static_cast<unsigned>(32 * kAttentionWarps);
  shape.shared_bytes = static_cast<std::size_t>(
      in_cluster || d.slots == 2 ? args.layout.bytes : std::max(args.layout.bytes, kAloneBytes));
  shape.cluster = static_cast<unsigned>(in_cluster ? d.blocks : 1);
  launch_dependent("attention", kernel, shape, context.handle(), args);
}

}  // namespace

void attention_decode(const AttentionArgs& a, LaunchContext& context,
                      const AttentionDistribution& distribution) {
  check_attention_decode(a);
  const int groups = groups_of(a);
  const AttentionDistribution d =
      fitting_distribution(a.head_dim, groups, a.num_q_heads / a.num_kv_heads, distribution);
  const Kernel kernel = d.meeting == AttentionMeeting::Cluster
                            ? kernel_for<AttentionMeeting::Cluster>(a.head_dim, groups)
                            : kernel_for<AttentionMeeting::Memory>(a.head_dim, groups);
  // The same limit always: another thread's launch of this instance may be under way.
  FUT_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
  launch(a, context, kernel, d);
}

void attention_decode(const AttentionArgs& a, LaunchContext& context) {
  if (groups_of(a) > 0 && a.q.dtype == DType::BF16) {
    prompt_attention(a, context);  // the arithmetic of prefill, though the step is one of decode
    return;
  }
  const int items = a.batch.num_sequences * a.num_kv_heads;
  attention_decode(a, context,
                   plan_attention_decode(items, a.num_q_heads / a.num_kv_heads,
                                         context.attention_contexts(a.batch.longest_context),
                                         context.machine()));
}

}  // namespace fut::cuda
