// How a step of one token for each sequence is handed out, and what lies where in shared memory: one
// table, read by the launcher and by the kernel. Includes no CUDA header.
#pragma once

#include <cstdint>

#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/layout/kv_splits.h"
#include "kernels/ops.h"

namespace fut::cuda {

inline constexpr int kAttentionHeads = 8;  // query heads of a KV head at most: columns of a product
inline constexpr int kAttentionWarps = 8;  // of a block; each makes one head's operand
inline constexpr int kLog2AttentionWarps = 3;
static_assert(kAttentionWarps == 1 << kLog2AttentionWarps);
inline constexpr int kMaxAttentionCluster = 8;
inline constexpr int kMaxAttentionBlocks = layout::kMaxKvSplits / kAttentionWarps;

// Steps whose longest context has at least as many tokens are handed out as long ones.
inline constexpr int kLongContext = 16384;

enum class AttentionContexts { Short, Long };

// How the blocks that share a sequence and KV head ("item") bring together what they come to. Cluster: in
// each other's shared memory; short steps take a microsecond less. Memory: in scratch memory, where the last
// block to come merges; as many blocks share an item as the chip has room for.
enum class AttentionMeeting { Cluster, Memory };

// Who attends to the splits of an item: `blocks` blocks (a power of two), each of their warps to a run of
// neighbouring splits. Results do not depend on it.
struct AttentionDistribution {
  int blocks = 1;  // Cluster: 8 at most; Memory: 2 to kMaxAttentionBlocks
  int slots = 8;   // of a warp's ring of blocks: 2, 4 or 8
  AttentionMeeting meeting = AttentionMeeting::Cluster;
  // Levels of the tree of splits that a warp merges by itself.
  [[nodiscard]] constexpr int warp_levels(int log2_splits) const {
    int levels = log2_splits - kLog2AttentionWarps;
    for (int b = 1; b < blocks; b *= 2) --levels;
    return levels > 0 ? levels : 0;
  }
};

// Byte offsets in a block's shared memory. A row of numbers of 16 bits is followed by 16 bytes, so
// that neighbouring rows lie in other banks.
struct AttentionLayout {
  int queries_f16 = 0;   // [head][D], scaled
  int queries_bf16 = 0;  // [head][D]
  int factors = 0;       // float [1 + groups][head], what products with codes are multiplied by
  int params = 0;        // of a block that is packed: [part][token][group], 16 bytes
  int raw = 0;           // [stage][key | value][16][D]; INT4: sinks and tail; else [warp][stage]
  int raw_stages = 2;    // of a warp; INT4: of the block
  int coded = 0;         // INT4: [warp][slot], see attention_ring.cuh
  int coded_slots = 0;   // a power of two
  int log2_coded_slots = 0;
  int maxima = 0;  // float [warp][head]
  int states = 0;  // [warp][slot of its stack], see attention_state.cuh
  int slots = 1;   // what short sequences need
  int parked = 0;  // further slots of a warp, which long ones need, in scratch memory
  int slot_bytes = 0;
  int incoming = 0;       // float4 [block of the cluster][share of the outputs]
  int incoming_rows = 0;  // float [block][2 + groups][head]
  int bytes = 0;
  int share = 0;  // float4s of the outputs that a block finishes
  int log2_share = 0;
  int log2_stored_lanes = 5;
  int stored_lanes = 32;  // lanes that hold columns of heads that are there

  [[nodiscard]] static constexpr int row_bytes(int head_dim) { return 2 * head_dim + 16; }
};

// A block of 16 coded tokens, keys and values.
[[nodiscard]] constexpr int coded_slot_bytes(int head_dim, int groups) {
  return 2 * (16 * head_dim / 2 + 16 * groups * layout::KvPageInt4::kParamBytes);
}

[[nodiscard]] constexpr AttentionLayout attention_layout(int head_dim, int groups, int heads,
                                                         const AttentionDistribution& d) {
  const int row = AttentionLayout::row_bytes(head_dim);
  AttentionLayout l;
  l.log2_stored_lanes = heads <= kAttentionHeads / 2 ? 4 : 5;
  l.stored_lanes = 1 << l.log2_stored_lanes;
  l.queries_bf16 = l.queries_f16 + kAttentionHeads * row;
  l.factors = l.queries_bf16 + kAttentionHeads * row;
  l.params = l.factors + (1 + groups) * kAttentionHeads * 4;
  l.raw = l.params + 2 * 16 * groups * 16;
  l.raw_stages = groups > 0 || d.slots == 2 ? 2 : 4;
  const int rings = groups > 0 ? 1 : kAttentionWarps;
  l.coded_slots = groups > 0 ? d.slots : 0;
  while (1 << l.log2_coded_slots < l.coded_slots) ++l.log2_coded_slots;
  l.coded = l.raw + rings * l.raw_stages * 2 * 16 * row;
  l.maxima = l.coded + kAttentionWarps * l.coded_slots * coded_slot_bytes(head_dim, groups);
  l.states = l.maxima + kAttentionWarps * kAttentionHeads * 4;
  const int levels = d.warp_levels(layout::kLog2KvSplits);
  const int long_levels = d.warp_levels(layout::kLog2LongKvSplits);
  l.slots = levels > 1 ? levels : 1;
  l.parked = long_levels > l.slots ? long_levels - l.slots : 0;
  const int out_bytes = head_dim / 16 * l.stored_lanes * 16;
  l.slot_bytes = out_bytes + (2 + groups) * kAttentionHeads * 4;
  l.bytes = l.states + kAttentionWarps * l.slots * l.slot_bytes;
  if (d.meeting == AttentionMeeting::Memory) return l;
  l.share = out_bytes / 16 / d.blocks;
  while (1 << l.log2_share < l.share) ++l.log2_share;
  l.incoming = l.bytes;
  l.incoming_rows = l.incoming + out_bytes;
  l.bytes = l.incoming_rows + d.blocks * (2 + groups) * kAttentionHeads * 4;
  return l;
}

// Device memory that states are kept in (attention_state.cuh) which do not fit a block or are for others.
struct AttentionScratch {
  std::uint8_t* parts = nullptr;   // [item][block]: what each block comes to; Memory
  std::uint8_t* parked = nullptr;  // [item][block][warp][layout.parked]
  unsigned* arrivals = nullptr;    // [item]: of blocks; zeros before and after; Memory
};

struct AttentionDecodeArgs {
  const void* q = nullptr;
  std::int64_t q_stride = 0;
  bool q_is_bf16 = false;
  const float* k = nullptr;  // INT4 cache
  std::int64_t k_stride = 0;
  const float* v = nullptr;
  std::int64_t v_stride = 0;
  int num_kv_heads = 0;
  int heads_per_kv_head = 0;
  int rotation_block = 0;
  float rotation_norm = 1;  // 1 / sqrt(rotation_block)
  float score_scale = 0;    // log2(e) / sqrt(D)
  const std::int32_t* kv_lengths = nullptr;
  const std::int32_t* kv_indptr = nullptr;
  const std::int32_t* page_table = nullptr;
  const std::int32_t* raw_slots = nullptr;
  std::uint8_t* pages = nullptr;
  std::uint16_t* raw = nullptr;
  void* out = nullptr;
  std::int64_t out_stride = 0;
  DType out_dtype = DType::F16;
  const float* out_scales = nullptr;
  std::uint64_t* saturations = nullptr;
  int log2_blocks = 0;  // of an item
  AttentionScratch scratch;
  AttentionLayout layout;
};

// items: sequences times KV heads. machine: how many clusters of one block a multiprocessor run at a
// time.
[[nodiscard]] AttentionDistribution plan_attention_decode(int items, int heads_per_kv_head,
                                                          AttentionContexts contexts,
                                                          const Int4GemmMachine& machine);

// How blocks of that distribution meet; the number of query heads does not matter to it.
[[nodiscard]] AttentionMeeting attention_meeting(int items, AttentionContexts contexts,
                                                 const Int4GemmMachine& machine);

// The same with as many slots less, or blocks more, as fit a block's shared memory.
[[nodiscard]] AttentionDistribution fitting_distribution(int head_dim, int groups, int heads,
                                                         AttentionDistribution d);

// Throws where the GPU has no kernel for the shape.
void check_attention_decode(const AttentionArgs& a);

// The arguments of the kernel but for `scratch` and `layout`.
[[nodiscard]] AttentionDecodeArgs attention_decode_args(const AttentionArgs& a,
                                                        const AttentionDistribution& d,
                                                        std::uint64_t* saturations);

}  // namespace fut::cuda
