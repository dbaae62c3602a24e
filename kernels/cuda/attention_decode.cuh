// attention for one token of each sequence, over an INT4 or a BF16 cache. Contract in ops.h.
// launch  some blocks for each KV head and sequence; each warp attends to a run of the splits of the
//         keys (layout/kv_splits.h), keeping the results it has to merge on a stack; then the blocks,
//         a cluster (attention_cluster.cuh) or more than a cluster can have (attention_memory.cuh),
//         merge what their warps came to
// bound   memory: bytes of the cached keys and values; at short lengths the chain of dependent steps
// INT4: the block that has the last split is the only one that reads and writes the sequence's tail;
// it stores the step's rows, and packs a block of 16 that they complete.
//
// What was tried, and in vain: README.md, "Attention of a decode step".
#pragma once

#include "kernels/cuda/attention_cluster.cuh"
#include "kernels/cuda/attention_memory.cuh"
#include "kernels/cuda/attention_queries.cuh"
#include "kernels/cuda/ptx/async_copy.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/warp.cuh"

namespace fut::cuda {

// In the place of a ring of codes.
struct NoRing {
  __device__ __forceinline__ NoRing(const AttentionDecodeArgs&, std::uint8_t*, int, int) {}
};

// kGroups: of dims that share a scale; 0: a BF16 cache.
template <int D, int kGroups, AttentionMeeting kMeeting>
class AttentionDecode {
 public:
  __device__ __forceinline__ AttentionDecode(const AttentionDecodeArgs& args, std::uint8_t* shared)
      : args_(args),
        layout_(args.layout),
        shared_(shared),
        lane_(ptx::lane()),
        warp_(ptx::warp_index()),
        rank_(blockIdx.x & ((1 << args.log2_blocks) - 1)),
        kv_head_(blockIdx.x >> args.log2_blocks),
        sequence_(blockIdx.y) {}

  __device__ __forceinline__ void run() {
    const AttentionItem item{rank_, kv_head_, sequence_};
    const Meeting meeting(args_, shared_, item);
    meeting.announce();
    Ring ring(args_, shared_, warp_, kv_head_);
    read_arguments();
    ptx::take_turn();
    load_batch();
    QueryMaker<D, kGroups> maker(args_, shared_, warp_, kv_head_, sequence_);
    load_step_rows();
    num_blocks_ = layout::num_kv_blocks(position_);
    const int log2_splits = layout::log2_kv_splits(num_blocks_);
    log2_ranks_ = meeting.log2_blocks(log2_splits);
    if constexpr (!kInCluster) {
      if (rank_ >> log2_ranks_ > 0) return;  // there are no splits for this block
    }
    levels_ = log2_splits - kLog2AttentionWarps - log2_ranks_;
    find_keys();
    if constexpr (kGroups > 0) {
      stage_raw_rows();
      ring.start(ids_, max(first_block_, 1), min(end_block_, num_blocks_ - 1));
      store_step_rows();
    } else {
      for (int i = 0; i < layout_.raw_stages - 1; ++i) stage_page_rows(first_block_ + i);
    }
    maker.make();
    __syncthreads();
    load_queries(queries_, args_, shared_);
    const Results results(args_, shared_, warp_, item);
    State state;
    float pending[2];
    attend(ring, results, state, pending);
    results.take(state, pending);
    meeting.meet(results, log2_ranks_);
    if constexpr (kGroups > 0) append();
  }

 private:
  using State = AttentionState<D, kGroups>;
  using Results = AttentionResults<D, kGroups>;
  static constexpr bool kInCluster = kMeeting == AttentionMeeting::Cluster;
  using Meeting =
      std::conditional_t<kInCluster, ClusterMeeting<D, kGroups>, MemoryMeeting<D, kGroups>>;
  using Ring = std::conditional_t<(kGroups > 0), CodedRing<D, (kGroups > 0 ? kGroups : 1)>, NoRing>;
  static constexpr int kRowBytes = AttentionLayout::row_bytes(D);
  static constexpr int kStageBytes = 2 * 16 * kRowBytes;
  static constexpr int kPageBlocks = layout::kPageTokens / 16;
  static constexpr layout::KvPageInt4 kPage{1, D, kGroups > 0 ? D / kGroups : D};

  // ---- which keys -------------------------------------------------------------------------------

  // The kernel's own arguments may be far away at first: one read for each line of them, while there is
  // nothing else to do.
  __device__ __forceinline__ void read_arguments() const {
    asm volatile("" ::"l"(args_.q), "l"(args_.kv_lengths), "l"(args_.out), "r"(layout_.factors),
                 "r"(layout_.maxima), "r"(layout_.stored_lanes));
  }

  __device__ __forceinline__ void load_batch() {
    position_ = args_.kv_lengths[sequence_] - 1;
    first_page_entry_ = args_.kv_indptr[sequence_];
    if constexpr (kGroups > 0) raw_slot_ = args_.raw_slots[sequence_];
  }

  __device__ __forceinline__ void find_keys() {
    first_split_ = (rank_ * kAttentionWarps + warp_) << levels_;
    first_block_ = layout::kv_split_begin(first_split_, num_blocks_);
    end_block_ = layout::kv_split_begin(first_split_ + (1 << levels_), num_blocks_);
    constexpr int kBlocks = kPageBlocks;
    const std::int32_t* table = args_.page_table + first_page_entry_;
    ids_.start(table, first_block_ / kBlocks, (num_blocks_ - 1) / kBlocks + 1);
    if (kGroups > 0 && has_last_split()) own_page_ = table[(num_blocks_ - 1) / kBlocks];
  }

  // Of the block: it is its last warp's.
  [[nodiscard]] __device__ __forceinline__ bool has_last_split() const {
    return rank_ + 1 == 1 << log2_ranks_;
  }

  // ---- raw rows ---------------------------------------------------------------------------------

  __device__ __forceinline__ std::uint8_t* stage(int index) const {
    return shared_ + layout_.raw + index * kStageBytes;
  }
  // INT4: where the rows of the first and of the last block lie.
  enum RawBlock { kSinks = 0, kTail = 1 };
  [[nodiscard]] __device__ __forceinline__ bool has_last_block() const {
    return end_block_ == num_blocks_;  // never empty: the last split
  }
  [[nodiscard]] __device__ __forceinline__ bool has_sinks() const {
    return num_blocks_ > 1 && first_block_ == 0 && end_block_ > 0;
  }

  // Copies rows of 16 positions, those before the query's own, to a stage; the ones behind it are
  // zeros, for what was never written may be a NaN.
  __device__ __forceinline__ void stage_rows(RawBlock block, int first_position) const {
    const layout::KvRawStore store{args_.num_kv_heads, D};
    constexpr int kPieces = D / 8;
    const std::uint16_t* source = args_.raw + raw_slot_ * store.elements() +
                                  store.offset(layout::KvPart::Key, kv_head_, first_position) +
                                  lane_ * 8;
    const std::int64_t value = store.offset(layout::KvPart::Value, 0, 0);
    std::uint32_t place =
        ptx::shared_address(stage(block)) + lane_ / kPieces * kRowBytes + lane_ % kPieces * 16;
#pragma unroll 2
    for (int row = lane_ / kPieces; row < 16; row += 32 / kPieces) {
      const int position = first_position + row;
      if (position != position_) {
        const std::uint32_t bytes = position < position_ ? 16 : 0;
        ptx::copy_16(place, source, bytes);
        ptx::copy_16(place + 16 * kRowBytes, source + value, bytes);
      }
      source += 32 * 8;
      place += 32 / kPieces * kRowBytes;
    }
  }

  __device__ __forceinline__ void stage_raw_rows() const {
    if (has_sinks()) stage_rows(kSinks, 0);
    if (has_last_block()) stage_rows(kTail, position_ / 16 * 16);
    ptx::commit_copies();
  }

  // BF16 cache: a block of 16 positions to this warp's ring; a group of copies whatever `block`.
  __device__ __forceinline__ void stage_page_rows(int block) {
    if (block < end_block_) {
      const layout::KvPageDense page{args_.num_kv_heads, D};
      constexpr int kPieces = D / 8;
      const std::uint16_t* source = reinterpret_cast<const std::uint16_t*>(args_.pages) +
                                    ids_.id(block / kPageBlocks) * page.elements() +
                                    page.k_offset(kv_head_, block % kPageBlocks * 16) + lane_ * 8;
      const std::int64_t value = page.v_offset(0, 0);
      std::uint32_t place = ptx::shared_address(ring_stage(block)) + lane_ / kPieces * kRowBytes +
                            lane_ % kPieces * 16;
#pragma unroll
      for (int row = lane_ / kPieces; row < 16; row += 32 / kPieces) {
        const std::uint32_t bytes = 16 * block + row <= position_ ? 16 : 0;
        ptx::copy_16(place, source, bytes);
        ptx::copy_16(place + 16 * kRowBytes, source + value, bytes);
        source += 32 * 8;
        place += 32 / kPieces * kRowBytes;
      }
    }
    ptx::commit_copies();
  }
  __device__ __forceinline__ std::uint8_t* ring_stage(int block) const {
    return stage(warp_ * layout_.raw_stages + (block - first_block_) % layout_.raw_stages);
  }

  // ---- the step's rows --------------------------------------------------------------------------

  // Of a block's last warp, before it is known whether the block has the last split; in a cluster, whose
  // last block always has, of that one's alone.
  __device__ __forceinline__ void load_step_rows() {
    if constexpr (kGroups > 0) {
      if (warp_ != kAttentionWarps - 1) return;
      if (kInCluster && rank_ + 1 != 1 << args_.log2_blocks) return;
      key_.load(args_.k + sequence_ * args_.k_stride + kv_head_ * D);
      value_.load(args_.v + sequence_ * args_.v_stride + kv_head_ * D);
    }
  }
  __device__ __forceinline__ void store_step_rows() {
    if (!has_last_block()) return;
    std::uint8_t* rows = stage(kTail) + position_ % 16 * kRowBytes;
    key_.rotate(args_.rotation_block, args_.rotation_norm);
    key_.store(rows, ptx::bf16x2);
    value_.store(rows + 16 * kRowBytes, ptx::bf16x2);
  }

  // ---- codes ------------------------------------------------------------------------------------

  // `count` neighbouring blocks of a split, two at most.
  __device__ __forceinline__ void attend_to_codes(Ring& ring, int block, int count, State& state) {
    const bool has_second = count == 2;
    ring.wait();
    CodedBlock<D, kGroups> first, second;
    first.load(ring.slot(block), lane_);
    second.load(ring.slot(block + 1), lane_);
    ring.release(has_second);
    float scores[2][4];
    score_codes(scores[0], queries_, first);
    score_codes(scores[1], queries_, second);
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[1][i] = has_second ? scores[1][i] : -INFINITY;
    state.raise_maxima(fmaxf(fmaxf(scores[0][0], scores[0][2]), fmaxf(scores[1][0], scores[1][2])),
                       fmaxf(fmaxf(scores[0][1], scores[0][3]), fmaxf(scores[1][1], scores[1][3])));
    take_probabilities(state, scores[0]);
    take_probabilities(state, scores[1]);
    add_coded_values(state, scores[0], first, true);
    add_coded_values(state, scores[1], second, has_second);
  }

  // ---- splits -----------------------------------------------------------------------------------

  // All splits of this warp, merged.
  __device__ __forceinline__ void attend(Ring& ring, const Results& results, State& state,
                                         float (&pending)[2]) {
    const int count = 1 << levels_;
    for (int i = 0; i < count; ++i) {
      state.clear();
      attend_to_split(ring, first_split_ + i, state);
      state.close(pending);
      if (count == 1) return;
      // A split whose number ends in n ones ends n levels of the tree.
      int level = 0;
      for (; (i >> level & 1) != 0; ++level) {
        state.merge_behind(results.slot(level), layout_.stored_lanes, pending);
      }
      if (i + 1 == count) return;
      state.scale(pending);
      __syncwarp();  // all have read what is written over
      state.store(results.slot(level), layout_.stored_lanes);
      __syncwarp();
    }
  }

  __device__ __forceinline__ void attend_to_split(Ring& ring, int split, State& state) {
    int block = layout::kv_split_begin(split, num_blocks_);
    const int end = layout::kv_split_begin(split + 1, num_blocks_);
    while (block < end) {
      const bool is_last = block + 1 == num_blocks_;
      if constexpr (kGroups == 0) {
        attend_to_page_rows(block, state);
        ++block;
      } else if (is_last || block == 0) {
        attend_to_staged(ring, is_last ? kTail : kSinks, is_last ? position_ % 16 + 1 : 16, state);
        ++block;
      } else {
        const int count = min(2, min(end, num_blocks_ - 1) - block);
        attend_to_codes(ring, block, count, state);
        block += count;
      }
    }
  }

  __device__ __forceinline__ void attend_to_staged(const Ring& ring, RawBlock block, int count,
                                                   State& state) const {
    ring.wait_for_earlier_copies();
    attend_to_rows(state, queries_, ptx::shared_address(stage(block)), count);
  }

  __device__ __forceinline__ void attend_to_page_rows(int block, State& state) {
    // Of the groups under way all but the newest ones are over.
    if (layout_.raw_stages == 2) {
      ptx::wait_for_copies<0>();
    } else {
      ptx::wait_for_copies<2>();
    }
    __syncwarp();
    stage_page_rows(block + layout_.raw_stages - 1);
    attend_to_rows(state, queries_, ptx::shared_address(ring_stage(block)),
                   min(16, position_ - 16 * block + 1));
    __syncwarp();
  }

  // ---- storing ----------------------------------------------------------------------------------

  // By the block with the last split, when the keys have been read.
  __device__ __forceinline__ void append() const {
    if (!has_last_split()) return;
    const layout::KvRawStore store{args_.num_kv_heads, D};
    const std::uint8_t* rows = stage(kTail);
    const bool packed = position_ % 16 == 15 && position_ >= layout::kSinkTokens;
    if (!packed && warp_ == 0) {
      std::uint16_t* slot = args_.raw + raw_slot_ * store.elements();
      constexpr int kPieces = D / 8;
      for (int i = lane_; i < 2 * kPieces; i += 32) {
        const int part = i / kPieces;
        std::uint16_t* place =
            slot + store.offset(static_cast<layout::KvPart>(part), kv_head_, position_) +
            i % kPieces * 8;
        *reinterpret_cast<uint4*>(place) = *reinterpret_cast<const uint4*>(
            rows + (16 * part + position_ % 16) * kRowBytes + i % kPieces * 16);
      }
    }
    if (!packed) return;
    const std::int64_t page = std::int64_t{own_page_} * args_.num_kv_heads + kv_head_;
    BlockPacker<D, kGroups>(
        rows, kRowBytes, reinterpret_cast<PackedParams*>(shared_ + layout_.params),
        args_.pages + page * kPage.head_bytes(), position_ / 16 * 16 % layout::kPageTokens)
        .pack();
  }

  const AttentionDecodeArgs& args_;
  const AttentionLayout& layout_;
  std::uint8_t* shared_;
  int lane_, warp_, rank_, kv_head_, sequence_;
  int position_, num_blocks_;
  int log2_ranks_;                             // blocks that have splits
  int levels_;                                 // of the tree of splits, merged by this warp
  int first_split_, first_block_, end_block_;  // of this warp
  int first_page_entry_, raw_slot_;
  int own_page_;  // of the query's position; in the block with the last split
  PageIds ids_;
  WarpRow<D> key_, value_;
  AttentionQueries<D, kGroups> queries_;
};

template <int D, int kGroups, AttentionMeeting kMeeting>
__global__ void __launch_bounds__(32 * kAttentionWarps, kGroups <= 1 ? 2 : 1)
    attention_decode_kernel(const __grid_constant__ AttentionDecodeArgs args) {
  extern __shared__ __align__(128) std::uint8_t attention_shared[];
  AttentionDecode<D, kGroups, kMeeting>(args, attention_shared).run();
}

}  // namespace fut::cuda
