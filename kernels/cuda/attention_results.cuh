// How the results of a block's warps become those of the block: warps scale theirs to the block's maxima, so
// that additions are all that is left to do. What blocks that share a sequence and KV head do with them is in
// attention_cluster.cuh and attention_memory.cuh. All additions are balanced trees in the order of the splits.
#pragma once

#include "kernels/cuda/attention_state.cuh"
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

// Whose keys a block attends to, and which of the item's blocks it is.
struct AttentionItem {
  int rank, kv_head, sequence;

  // Among those of the batch.
  [[nodiscard]] __device__ __forceinline__ int number(const AttentionDecodeArgs& args) const {
    return sequence * args.num_kv_heads + kv_head;
  }
};

// An output of head `column` of the item's.
template <int D>
__device__ __forceinline__ void store_output(const AttentionDecodeArgs& args,
                                             const AttentionItem& item, int column, int dim,
                                             float value) {
  const std::int64_t place =
      item.sequence * args.out_stride + (item.kv_head * args.heads_per_kv_head + column) * D + dim;
  if (args.out_dtype == DType::F16) {
    static_cast<std::uint16_t*>(args.out)[place] = ptx::saturated_f16(value);
  } else if (args.out_dtype == DType::BF16) {
    static_cast<std::uint16_t*>(args.out)[place] =
        static_cast<std::uint16_t>(ptx::bf16x2(value, 0.0F));
  } else {
    const float scaled = value * args.out_scales[item.kv_head];
    static_cast<std::uint8_t*>(args.out)[place] = ptx::saturated_e4m3(scaled);
    if (e4m3_saturates(scaled)) {
      atomicAdd(reinterpret_cast<unsigned long long*>(args.saturations) + 1, 1ULL);
    }
  }
}

template <int D, int kGroups>
class AttentionResults {
 public:
  static constexpr int kTiles = D / 16;
  static constexpr int kRows = 2 + kGroups;  // of a slot: [head] each, the maxima first

  __device__ __forceinline__ AttentionResults(const AttentionDecodeArgs& args, std::uint8_t* shared,
                                              int warp, const AttentionItem& item)
      : args_(args), layout_(args.layout), shared_(shared), warp_(warp), item_(item) {}

  // Slot `index` of this warp's stack of states: the last ones of long sequences are far away.
  [[nodiscard]] __device__ __forceinline__ std::uint8_t* slot(int index) const {
    return index < layout_.slots ? slot(warp_, index) : parked_slot(index - layout_.slots);
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
    state.store(slot(warp_, 0), layout_.stored_lanes);
    __syncthreads();
  }

  // Behind take(), float4 number `i` of the block's state, which is laid out as a slot: the values, then rows.
  [[nodiscard]] __device__ __forceinline__ float4 element(int i) const {
    const int row_element = i - values();
    constexpr int kMaximaElements = kAttentionHeads / 4;
    return row_element >= 0 && row_element < kMaximaElements ? slot_element(0, i) : sum_of_warps(i);
  }
  [[nodiscard]] __device__ __forceinline__ int values() const {
    return kTiles << layout_.log2_stored_lanes;
  }
  // The same, of the values alone.
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

 private:
  [[nodiscard]] __device__ __forceinline__ std::uint8_t* slot(int warp, int index) const {
    return shared_ + layout_.states + (warp * layout_.slots + index) * layout_.slot_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ std::uint8_t* parked_slot(int index) const {
    const std::int64_t block = (item_.number(args_) << args_.log2_blocks) + item_.rank;
    const std::int64_t place = (block * kAttentionWarps + warp_) * layout_.parked + index;
    return args_.scratch.parked + place * layout_.slot_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ float4 slot_element(int warp, int i) const {
    return reinterpret_cast<const float4*>(slot(warp, 0))[i];
  }

  const AttentionDecodeArgs& args_;
  const AttentionLayout& layout_;
  std::uint8_t* shared_;
  int warp_;
  AttentionItem item_;
};

}  // namespace fut::cuda
