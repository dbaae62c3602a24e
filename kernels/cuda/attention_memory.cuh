// How blocks that share a sequence and KV head turn what they come to into outputs without waiting for each
// other: each leaves it in scratch memory and counts itself, and the one that comes last scales all parts to
// common maxima, adds them up as a balanced tree in the order of the splits, and divides. Which blocks come
// follows from the sequence's length: each knows it by itself.
#pragma once

#include "kernels/cuda/attention_results.cuh"
#include "kernels/cuda/ptx/device_counter.cuh"
#include "kernels/cuda/ptx/prefetch.cuh"

namespace fut::cuda {

template <int D, int kGroups>
class MemoryMeeting {
 public:
  using Results = AttentionResults<D, kGroups>;

  __device__ __forceinline__ MemoryMeeting(const AttentionDecodeArgs& args,
                                           std::uint8_t* /*shared*/, const AttentionItem& item)
      : args_(args), layout_(args.layout), item_(item) {}

  // As soon as the block runs: what is asked for first, when it is this kernel's turn, is found at once.
  __device__ __forceinline__ void announce() const {
    if (threadIdx.x != 0) return;
    ptx::prefetch(args_.kv_lengths + item_.sequence);
    ptx::prefetch(args_.kv_indptr + item_.sequence);
    ptx::prefetch(args_.page_table);
    ptx::prefetch(args_.q);
    if constexpr (kGroups > 0) {
      ptx::prefetch(args_.raw_slots + item_.sequence);
      ptx::prefetch(args_.k);
      ptx::prefetch(args_.v);
    }
    ptx::prefetch(part(item_.rank));
    ptx::prefetch(args_.scratch.arrivals + item_.number(args_));
    ptx::prefetch(args_.out);
  }

  // Those that there are splits for, one a warp.
  [[nodiscard]] __device__ __forceinline__ int log2_blocks(int log2_splits) const {
    return min(args_.log2_blocks, log2_splits - kLog2AttentionWarps);
  }

  // Behind Results::take(), by all threads of the item's first 2^log2_blocks blocks.
  __device__ __forceinline__ void meet(const Results& results, int log2_blocks) const {
    auto* place = reinterpret_cast<float4*>(part(item_.rank));
    const int elements = results.values() + Results::kRows * kAttentionHeads / 4;
    for (int i = threadIdx.x; i < elements; i += 32 * kAttentionWarps) {
      place[i] = results.element(i);
    }
    if (comes_last(log2_blocks)) finish(results.values(), log2_blocks);
  }

 private:
  static constexpr int kColumnPairs = kAttentionHeads / 2;

  // Where a block's state goes, in the form of attention_state.cuh.
  [[nodiscard]] __device__ __forceinline__ std::uint8_t* part(int rank) const {
    const std::int64_t block = (item_.number(args_) << args_.log2_blocks) + rank;
    return args_.scratch.parts + block * layout_.slot_bytes;
  }

  // Whether all others' parts are in their places as well; then they can be read.
  [[nodiscard]] __device__ __forceinline__ bool comes_last(int log2_blocks) const {
    __syncthreads();
    int is_last = 0;
    if (threadIdx.x == 0) {
      const unsigned others = (1U << log2_blocks) - 1;
      is_last = ptx::arrive(args_.scratch.arrivals + item_.number(args_), others) == others ? 1 : 0;
    }
    return __syncthreads_or(is_last) != 0;
  }

  // The outputs. Two neighbouring lanes add up four of them, half the parts each, and finish two.
  __device__ __forceinline__ void finish(int values, int log2_blocks) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * values; i += 32 * kAttentionWarps) {
      finish_outputs(i / 2, i % 2, log2_blocks);
    }
  }

  struct Part {
    float4 values;
    float2 maxima, sums, minima;
  };
  // Float4 `element` of a part's values and what belongs to its two columns.
  [[nodiscard]] __device__ __forceinline__ Part load(int rank, int element, int pair,
                                                     int group) const {
    std::uint8_t* slot = part(rank);
    const auto* rows =
        reinterpret_cast<const float2*>(slot_rows<D>(slot, layout_.stored_lanes)) + pair;
    Part p;
    p.values = slot_values<D>(slot)[element];
    p.maxima = rows[0];
    p.sums = rows[kColumnPairs];
    p.minima = kGroups > 0 ? rows[(2 + group) * kColumnPairs] : make_float2(0.0F, 0.0F);
    return p;
  }

  __device__ __forceinline__ void finish_outputs(int element, int half, int log2_blocks) const {
    const StoredLane stored(element & (layout_.stored_lanes - 1), layout_.stored_lanes);
    const int tile = element >> layout_.log2_stored_lanes;
    const int group = tile * kGroups / Results::kTiles;
    const int own = 1 << log2_blocks >> 1;
    constexpr int kMost = kMaxAttentionBlocks / 2;
    Part parts[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      parts[i].values = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
      parts[i].sums = parts[i].minima = make_float2(0.0F, 0.0F);
      parts[i].maxima = make_float2(-INFINITY, -INFINITY);
      if (i < own) parts[i] = load(half * own + i, element, stored.t, group);
    }
    float2 maxima = parts[0].maxima;
#pragma unroll
    for (int i = 1; i < kMost; ++i) {
      maxima.x = fmaxf(maxima.x, parts[i].maxima.x);
      maxima.y = fmaxf(maxima.y, parts[i].maxima.y);
    }
    maxima.x = fmaxf(maxima.x, __shfl_xor_sync(0xFFFFFFFFU, maxima.x, 1));
    maxima.y = fmaxf(maxima.y, __shfl_xor_sync(0xFFFFFFFFU, maxima.y, 1));
    float low[2][kMost], high[2][kMost], sums[2][kMost], minima[2][kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const Part& p = parts[i];
      const float x = power_of_two(p.maxima.x - maxima.x);
      const float y = power_of_two(p.maxima.y - maxima.y);
      low[0][i] = x * p.values.x;
      low[1][i] = y * p.values.y;
      high[0][i] = x * p.values.z;
      high[1][i] = y * p.values.w;
      sums[0][i] = x * p.sums.x;
      sums[1][i] = y * p.sums.y;
      minima[0][i] = x * p.minima.x;
      minima[1][i] = y * p.minima.y;
    }
    const float sum = of_column(sums, half);
    float first = of_column(low, half);
    float second = of_column(high, half);
    if constexpr (kGroups > 0) {
      const float minimum = of_column(minima, half);
      first = first * 0x1p24F + minimum;
      second = second * 0x1p20F + minimum;
    }
    const int column = 2 * stored.t + half;
    if (column >= args_.heads_per_kv_head) return;
    store_output<D>(args_, item_, column, 16 * tile + stored.g, first / sum);
    store_output<D>(args_, item_, column, 16 * tile + stored.g + 8, second / sum);
  }

  // Column `half` of the pair: this lane's parts and its neighbour's.
  __device__ __forceinline__ static float of_column(
      const float (&columns)[2][kMaxAttentionBlocks / 2], int half) {
    const float x = add_tree(columns[0]);
    const float y = add_tree(columns[1]);
    return (half == 0 ? x : y) + __shfl_xor_sync(0xFFFFFFFFU, half == 0 ? y : x, 1);
  }

  const AttentionDecodeArgs& args_;
  const AttentionLayout& layout_;
  AttentionItem item_;
};

}  // namespace fut::cuda
