// How the blocks of a cluster turn what they come to into outputs: they add up their warps' results and send
// each sum to the block that finishes it, and that one scales what blocks sent to the cluster's maxima, adds
// it up and divides.
#pragma once

#include "kernels/cuda/attention_results.cuh"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/cluster.cuh"

namespace fut::cuda {

template <int D, int kGroups>
class ClusterMeeting {
 public:
  using Results = AttentionResults<D, kGroups>;

  __device__ __forceinline__ ClusterMeeting(const AttentionDecodeArgs& args, std::uint8_t* shared,
                                            const AttentionItem& item)
      : args_(args), layout_(args.layout), shared_(shared), item_(item) {}

  // As soon as the block runs.
  __device__ __forceinline__ void announce() const {
    if (args_.log2_blocks > 0) ptx::cluster_arrive();
  }

  // All have a share of the keys, if an empty one.
  [[nodiscard]] __device__ __forceinline__ int log2_blocks(int /*log2_splits*/) const {
    return args_.log2_blocks;
  }

  // Behind Results::take(), by all threads.
  __device__ __forceinline__ void meet(const Results& results, int /*log2_blocks*/) const {
    if (args_.log2_blocks > 0) ptx::cluster_wait();  // all blocks are there to be written to
    send(results);
    if (args_.log2_blocks > 0) {
      __syncwarp();
      ptx::cluster_arrive();
      ptx::cluster_wait();
    } else {
      __syncthreads();
    }
    finish();
  }

 private:
  static constexpr int kRows = Results::kRows;

  // Sums of values go to the block that finishes them, the rest to all.
  __device__ __forceinline__ void send(const Results& results) const {
    const int values = results.values();
    constexpr int kPlaces = kRows <= 4 ? 8 : 16;  // for the float4s of rows
    static_assert(2 * kRows <= kPlaces);
    const int end = values + (kPlaces << args_.log2_blocks);
    for (int i = threadIdx.x; i < end; i += 32 * kAttentionWarps) {
      const int row_element = (i - values) % kPlaces;
      if (i < values) {
        put(incoming(item_.rank) + (i & (share() - 1)), i >> layout_.log2_share,
            results.sum_of_warps(i));
      } else if (row_element < 2 * kRows) {
        put(reinterpret_cast<float4*>(incoming_rows(item_.rank)) + row_element,
            (i - values) / kPlaces, results.element(values + row_element));
      }
    }
  }

  // This block's outputs. An output's parts are added by up to four neighbouring lanes.
  __device__ __forceinline__ void finish() const {
    const int log2_lanes = min(args_.log2_blocks, 2);
    for (int i = threadIdx.x; i < 4 * share() << log2_lanes; i += 32 * kAttentionWarps) {
      finish_output(i >> log2_lanes, i & ((1 << log2_lanes) - 1), log2_lanes);
    }
  }

  // Float4s of the outputs that a block finishes: a power of two.
  [[nodiscard]] __device__ __forceinline__ int share() const { return layout_.share; }
  [[nodiscard]] __device__ __forceinline__ float* incoming_rows(int block) const {
    return reinterpret_cast<float*>(shared_ + layout_.incoming_rows) +
           block * kRows * kAttentionHeads;
  }
  [[nodiscard]] __device__ __forceinline__ float4* incoming(int block) const {
    return reinterpret_cast<float4*>(shared_ + layout_.incoming) + block * share();
  }

  // To the same place in a block of the cluster.
  __device__ __forceinline__ void put(float4* place, int block, const float4& v) const {
    if (args_.log2_blocks == 0) {
      *place = v;
    } else {
      ptx::store_in_cluster_16(ptx::address_in_block(ptx::shared_address(place), block), v);
    }
  }

  // Number i of the outputs of this block, by neighbouring lanes of which this is one.
  __device__ __forceinline__ void finish_output(int i, int lane, int log2_lanes) const {
    const int lanes = 1 << log2_lanes;
    const int element = item_.rank * share() + i / 4;
    const StoredLane stored(element & (layout_.stored_lanes - 1), layout_.stored_lanes);
    const int part = i % 4;  // of the float4
    const int column = 2 * stored.t + part % 2;
    const int dim = (element >> layout_.log2_stored_lanes) * 16 + stored.g + part / 2 * 8;
    const int group = dim * kGroups / D;
    const int blocks = 1 << args_.log2_blocks >> log2_lanes;
    constexpr int kMaxBlocks = kMaxAttentionCluster / 4;
    float maxima[kMaxBlocks];
    float maximum = -INFINITY;
#pragma unroll
    for (int b = 0; b < kMaxBlocks; ++b) {
      maxima[b] = b < blocks ? incoming_rows(lane * blocks + b)[column] : -INFINITY;
      maximum = fmaxf(maximum, maxima[b]);
    }
    for (int distance = 1; distance < lanes; distance *= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(0xFFFFFFFFU, maximum, distance));
    }
    float values[kMaxBlocks], sums[kMaxBlocks], minima[kMaxBlocks];
#pragma unroll
    for (int b = 0; b < kMaxBlocks; ++b) {
      values[b] = sums[b] = minima[b] = 0.0F;
      if (b >= blocks) continue;
      const float factor = power_of_two(maxima[b] - maximum);
      const float* rows = incoming_rows(lane * blocks + b) + column;
      values[b] = factor * reinterpret_cast<const float*>(incoming(lane * blocks + b))[i];
      sums[b] = factor * rows[kAttentionHeads];
      if constexpr (kGroups > 0) minima[b] = factor * rows[(2 + group) * kAttentionHeads];
    }
    float value = add_tree(values);
    float sum = add_tree(sums);
    float minimum = add_tree(minima);
    for (int distance = 1; distance < lanes; distance *= 2) {
      value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
      sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
      if constexpr (kGroups > 0) minimum += __shfl_xor_sync(0xFFFFFFFFU, minimum, distance);
    }
    if constexpr (kGroups > 0) value = value * (part < 2 ? 0x1p24F : 0x1p20F) + minimum;
    if (lane == 0 && column < args_.heads_per_kv_head) {
      store_output<D>(args_, item_, column, dim, value / sum);
    }
  }

  const AttentionDecodeArgs& args_;
  const AttentionLayout& layout_;
  std::uint8_t* shared_;
  AttentionItem item_;
};

}  // namespace fut::cuda
