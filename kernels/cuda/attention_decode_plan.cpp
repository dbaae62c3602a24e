// Which distribution a batch gets, and what the kernel's arguments are.
#include <cmath>
#include <numbers>

#include "kernels/check.h"
#include "kernels/cuda/attention_decode.h"

namespace fut::cuda {

namespace {

// Short steps. One block a multiprocessor as long as there are enough of them; rings of 8 take so much memory
// that no second one fits, for clusters of 8 and 4 would rather sit on half as many multiprocessors.
AttentionDistribution in_clusters(int items, int heads_per_kv_head,
                                  const Int4GemmMachine& machine) {
  if (items <= machine.max_clusters_of_8) return {8, 8};
  if (items <= machine.max_clusters_of_4) return {4, 8};
  if (items <= machine.max_clusters_of_2) return {2, 4};
  // Two blocks a multiprocessor hide each other's steps, and both rings together hold enough; stacks of
  // larger states leave room for one. Where that would leave half of them idle, two blocks share an item.
  if (heads_per_kv_head > kAttentionHeads / 2) return {1, 8};
  return {items <= machine.num_multiprocessors ? 2 : 1, 2};
}

}  // namespace

// Clusters leave multiprocessors idle, half of the chip at batch 1: where keys are what takes the time, as
// many blocks share an item as there is room for. Where clusters have as many, they are as good.
AttentionDistribution plan_attention_decode(int items, int heads_per_kv_head,
                                            AttentionContexts contexts,
                                            const Int4GemmMachine& machine) {
  const AttentionDistribution clusters = in_clusters(items, heads_per_kv_head, machine);
  if (contexts == AttentionContexts::Short) return clusters;
  int blocks = kMaxAttentionBlocks;
  while (blocks > 1 && blocks * items > machine.num_multiprocessors) blocks /= 2;
  if (blocks <= clusters.blocks) return clusters;
  return {blocks, 4, AttentionMeeting::Memory};
}

AttentionMeeting attention_meeting(int items, AttentionContexts contexts,
                                   const Int4GemmMachine& machine) {
  return plan_attention_decode(items, 1, contexts, machine).meeting;
}

AttentionDistribution fitting_distribution(int head_dim, int groups, int heads,
                                           AttentionDistribution d) {
  while (attention_layout(head_dim, groups, heads, d).bytes > kMaxSharedBytes) {
    if (d.slots > 2) {
      d.slots /= 2;
    } else {
      d.blocks *= 2;  // shorter stacks
    }
  }
  return d;
}

void check_attention_decode(const AttentionArgs& a) {
  FUT_CHECK(a.head_dim == 64 || a.head_dim == 128,
            "attention: head_dim is {}, the GPU has 64 and 128", a.head_dim);
  FUT_CHECK(a.num_q_heads / a.num_kv_heads <= kAttentionHeads,
            "attention: {} query heads share a KV head, the GPU takes {} at most",
            a.num_q_heads / a.num_kv_heads, kAttentionHeads);
  const auto* int4 = std::get_if<KvPagesInt4>(&a.kv);
  const void* pages =
      int4 != nullptr ? static_cast<const void*>(int4->data) : std::get<KvPages>(a.kv).data;
  for (const void* rows : {pages, int4 != nullptr ? static_cast<const void*>(int4->raw) : pages}) {
    FUT_CHECK(reinterpret_cast<std::uintptr_t>(rows) % 16 == 0,
              "attention: the cache lies at {}: the GPU reads 16 bytes at a time", rows);
  }
}

AttentionDecodeArgs attention_decode_args(const AttentionArgs& a, const AttentionDistribution& d,
                                          std::uint64_t* saturations) {
  const auto* int4 = std::get_if<KvPagesInt4>(&a.kv);
  AttentionDecodeArgs r;
  r.heads_per_kv_head = a.num_q_heads / a.num_kv_heads;
  r.q = a.q.data;
  r.q_stride = a.q.row_stride;
  r.q_is_bf16 = a.q.dtype == DType::BF16;
  r.num_kv_heads = a.num_kv_heads;
  r.rotation_block = a.rotation_block;
  if (a.rotation_block > 0) {
    r.rotation_norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.rotation_block)));
  }
  r.score_scale =
      static_cast<float>(std::numbers::log2e / std::sqrt(static_cast<double>(a.head_dim)));
  r.kv_lengths = a.batch.kv_lengths;
  r.kv_indptr = a.batch.kv_indptr;
  r.page_table = a.batch.page_table;
  r.raw_slots = a.batch.raw_slots;
  if (int4 != nullptr) {
    r.k = static_cast<const float*>(a.k.data);
    r.k_stride = a.k.row_stride;
    r.v = static_cast<const float*>(a.v.data);
    r.v_stride = a.v.row_stride;
    r.pages = int4->data;
    r.raw = int4->raw;
  } else {
    r.pages = static_cast<std::uint8_t*>(std::get<KvPages>(a.kv).data);
  }
  r.out = a.out.data;
  r.out_stride = a.out.row_stride;
  r.out_dtype = a.out.dtype;
  r.out_scales = a.out_scales;
  r.saturations = saturations;
  while (1 << r.log2_blocks < d.blocks) ++r.log2_blocks;
  return r;
}

}  // namespace fut::cuda
