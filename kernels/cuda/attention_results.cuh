// How the results of the warps of a cluster become outputs: warps scale theirs to the block's maxima,
// blocks add up their warps' and send each sum to the block that finishes it, and that one scales what
// blocks sent to the cluster's maxima, adds it up and divides. All additions are balanced trees in the
// order of the splits.
#pragma once

#include "kernels/cuda/attention_state.cuh"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/formats.h"

namespace fut::cuda {

// ((v0 + v1) + (v2 + v3)) + ... of a power of two of them.
template <int kCount>
__device__ __forceinline__ float add_tree(const float (&v)[kCount]) {
  float sums[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = v[i];
#pragma unroll
  for (int distance = 1; distance < kCount; distance *= 2) {
#pragma unroll
    for (int i = 0; i + distance < kCount; i += 2 * distance) sums[i] += sums[i + distance];
  }
  return sums[0];
}

template <int D, int kGroups>
class AttentionResults {
 public:
  __device__ __forceinline__ AttentionResults(const AttentionDecodeArgs& args, std::uint8_t* shared,
                                              int warp, int rank, int kv_head, int sequence)
      : args_(args),
        layout_(args.layout),
        shared_(shared),
        warp_(warp),
        rank_(rank),
        kv_head_(kv_head),
        sequence_(sequence) {}

  // Slot `index` of this warp's stack of states.
  [[nodiscard]] __device__ __forceinline__ std::uint8_t* slot(int index) const {
    return slot(warp_, index);
  }

  // This warp's result; `pending`: see AttentionState::close(). All warps of the block together.
  __device__ __forceinline__ void take(AttentionState<D, kGroups>& state,
                                       float (&pending)[2]) const {
    auto* maxima = reinterpret_cast<float2*>(shared_ + layout_.maxima);
    const int lane = threadIdx.x % 32;
    if (lane < 4) {
      maxima[warp_ * 4 + lane] = make_float2(state.maxima[0], state.maxima[1]);
    }
    __syncthreads();
    float2 all = make_float2(-INFINITY, -INFINITY);
    for (int w = 0; w < kAttentionWarps; ++w) {
      const float2 m = maxima[w * 4 + lane % 4];
      all = make_float2(fmaxf(all.x, m.x), fmaxf(all.y, m.y));
    }
    pending[0] *= power_of_two(state.maxima[0] - all.x);
    pending[1] *= power_of_two(state.maxima[1] - all.y);
    state.scale(pending);
    state.maxima[0] = all.x;
    state.maxima[1] = all.y;
    state.store(slot(0), layout_.stored_lanes);
    __syncthreads();
  }

  // Sums of values go to the block that finishes them, the rest to all.
  __device__ __forceinline__ void send() const {
    const int values = kTiles * layout_.stored_lanes;
    constexpr int kPlaces = kRows <= 4 ? 8 : 16;  // for the float4s of rows
    static_assert(2 * kRows <= kPlaces);
    const int end = values + kPlaces * args_.cluster;
    for (int i = threadIdx.x; i < end; i += 32 * kAttentionWarps) {
      const int row_element = (i - values) % kPlaces;
      if (i < values) {
        put(incoming(rank_) + (i & (share() - 1)), i >> layout_.log2_share, sum_of_warps(i));
      } else if (row_element < 2 * kRows) {
        const int element = values + row_element;
        put(reinterpret_cast<float4*>(incoming_rows(rank_)) + row_element, (i - values) / kPlaces,
            row_element < 2 ? slot_element(0, element) : sum_of_warps(element));
      }
    }
  }

  // This block's outputs. An output's parts are added by up to four neighbouring lanes.
  __device__ __forceinline__ void finish() const {
    const int log2_lanes = min(args_.log2_cluster, 2);
    for (int i = threadIdx.x; i < 4 * share() << log2_lanes; i += 32 * kAttentionWarps) {
      finish_output(i >> log2_lanes, i & ((1 << log2_lanes) - 1), log2_lanes);
    }
  }

 private:
  static constexpr int kTiles = D / 16;
  static constexpr int kRows = 2 + kGroups;  // of a slot: [head] each

  [[nodiscard]] __device__ __forceinline__ std::uint8_t* slot(int warp, int index) const {
    return shared_ + layout_.states + (warp * layout_.slots + index) * layout_.slot_bytes;
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

  [[nodiscard]] __device__ __forceinline__ float4 slot_element(int warp, int i) const {
    return reinterpret_cast<const float4*>(slot(warp, 0))[i];
  }
  [[nodiscard]] __device__ __forceinline__ float4 sum_of_warps(int i) const {
    float x[kAttentionWarps], y[kAttentionWarps], z[kAttentionWarps], w[kAttentionWarps];
#pragma unroll
    for (int warp = 0; warp < kAttentionWarps; ++warp) {
      const float4 v = slot_element(warp, i);
      x[warp] = v.x;
      y[warp] = v.y;
      z[warp] = v.z;
      w[warp] = v.w;
    }
    return make_float4(add_tree(x), add_tree(y), add_tree(z), add_tree(w));
  }

  // To the same place in a block of the cluster.
  __device__ __forceinline__ void put(float4* place, int block, const float4& v) const {
    if (args_.cluster == 1) {
      *place = v;
    } else {
      ptx::store_in_cluster_16(ptx::address_in_block(ptx::shared_address(place), block), v);
    }
  }

  // Number i of the outputs of this block, by neighbouring lanes of which this is one.
  __device__ __forceinline__ void finish_output(int i, int lane, int log2_lanes) const {
    const int lanes = 1 << log2_lanes;
    const int element = rank_ * share() + i / 4;
    const StoredLane stored(element & (layout_.stored_lanes - 1), layout_.stored_lanes);
    const int part = i % 4;  // of the float4
    const int column = 2 * stored.t + part % 2;
    const int dim = (element >> layout_.log2_stored_lanes) * 16 + stored.g + part / 2 * 8;
    const int group = dim * kGroups / D;
    const int blocks = args_.cluster >> log2_lanes;
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
    if (lane == 0 && column < args_.heads_per_kv_head) store_output(column, dim, value / sum);
  }

  __device__ __forceinline__ void store_output(int column, int dim, float value) const {
    const std::int64_t place =
        sequence_ * args_.out_stride + (kv_head_ * args_.heads_per_kv_head + column) * D + dim;
    if (args_.out_dtype == DType::F16) {
      static_cast<std::uint16_t*>(args_.out)[place] = ptx::saturated_f16(value);
    } else if (args_.out_dtype == DType::BF16) {
      static_cast<std::uint16_t*>(args_.out)[place] =
          static_cast<std::uint16_t>(ptx::bf16x2(value, 0.0F));
    } else {
      const float scaled = value * args_.out_scales[kv_head_];
      static_cast<std::uint8_t*>(args_.out)[place] = ptx::saturated_e4m3(scaled);
      if (e4m3_saturates(scaled)) {
        atomicAdd(reinterpret_cast<unsigned long long*>(args_.saturations) + 1, 1ULL);
      }
    }
  }

  const AttentionDecodeArgs& args_;
  const AttentionLayout& layout_;
  std::uint8_t* shared_;
  int warp_, rank_, kv_head_, sequence_;
};

}  // namespace fut::cuda
