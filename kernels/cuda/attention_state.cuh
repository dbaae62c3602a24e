// What attention to some keys comes to, so that more keys can be added: for each query head (a
// column) the maximum, the sum of 2^(score - maximum), and the weighted sums of values. Inside a split
// the maximum is the largest score so far. When the split is over it is raised to the next whole
// number; from then on states are scaled by powers of two alone, which is exact, so that they merge by
// plain additions, to the same bits whoever scales which state when (as long as nothing leaves
// float32's range below: 2^-100 of the largest probability).
#pragma once

#include <cmath>

#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/ptx/async_copy.cuh"
#include "kernels/cuda/ptx/matrix_fragments.cuh"
#include "kernels/cuda/ptx/warp.cuh"

namespace fut::cuda {

// 2^k for a whole number k <= 0, exact; 0 for k < -126, -inf and a NaN.
__device__ __forceinline__ float power_of_two(float k) {
  constexpr float kStepsOfOne = 0x1.8p23F + 127;  // from here on whole numbers are the lowest bits
  return __uint_as_float(__float_as_uint(fmaxf(k, -127.0F) + kStepsOfOne) << 23);
}

// Adds over the eight lanes of a column pair; every one of them gets the sum.
__device__ __forceinline__ float column_sum(float v) {
  v += __shfl_xor_sync(0xFFFFFFFFU, v, 4);
  v += __shfl_xor_sync(0xFFFFFFFFU, v, 8);
  return v + __shfl_xor_sync(0xFFFFFFFFU, v, 16);
}
__device__ __forceinline__ float column_maximum(float v) {
  v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFU, v, 4));
  v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFU, v, 8));
  return fmaxf(v, __shfl_xor_sync(0xFFFFFFFFU, v, 16));
}

// A state in shared memory ("slot"): float4 [tile][stored lane], then float [2 + groups][head]: the
// maxima, the sums, the sums of minima.
template <int D>
__device__ __forceinline__ float4* slot_values(std::uint8_t* slot) {
  return reinterpret_cast<float4*>(slot);
}
template <int D>
__device__ __forceinline__ float* slot_rows(std::uint8_t* slot, int stored_lanes) {
  return reinterpret_cast<float*>(slot + D / 16 * stored_lanes * 16);
}

// A warp's share of a state. Lane 4g + t holds columns 2t and 2t + 1 of dims 16j + g (values[j][0],
// [1]) and 16j + g + 8 ([2], [3]). With codes the former are 2^24 and the latter 2^20 too small (see
// attention_blocks.cuh). kGroups: of dims that share a minimum; 0: no codes.
template <int D, int kGroups>
struct AttentionState {
  static constexpr int kTiles = D / 16;
  static constexpr int kMinima = kGroups > 0 ? kGroups : 1;

  float values[kTiles][4];
  float maxima[2];
  float sums[2];  // this lane's tokens alone until close()
  float minima[kMinima][2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[j][i] = 0.0F;
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      maxima[c] = -INFINITY;
      sums[c] = 0.0F;
#pragma unroll
      for (int group = 0; group < kMinima; ++group) minima[group][c] = 0.0F;
    }
  }

  // Takes in the largest score of new keys, one a column, and scales down what is there.
  __device__ __forceinline__ void raise_maxima(float maximum_0, float maximum_1) {
    maximum_0 = fmaxf(maxima[0], column_maximum(maximum_0));
    maximum_1 = fmaxf(maxima[1], column_maximum(maximum_1));
    if (!__any_sync(0xFFFFFFFFU, maximum_0 > maxima[0] || maximum_1 > maxima[1])) return;
    const float factors[2] = {ptx::exp2_fast(maxima[0] - maximum_0),
                              ptx::exp2_fast(maxima[1] - maximum_1)};
    maxima[0] = maximum_0;
    maxima[1] = maximum_1;
    scale(factors);
  }

  // The split is over: adds up what lanes have apart. Returns what scale() still has to be given,
  // maxima being whole numbers now. Without any keys nothing is to be scaled.
  __device__ __forceinline__ void close(float (&pending)[2]) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      sums[c] = column_sum(sums[c]);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) minima[group][c] = column_sum(minima[group][c]);
      const float whole = ceilf(maxima[c]);
      pending[c] = maxima[c] == -INFINITY ? 1.0F : ptx::exp2_fast(maxima[c] - whole);
      maxima[c] = whole;
    }
  }

  // Rounded by itself, whatever is added afterwards.
  __device__ __forceinline__ void scale(const float (&factors)[2]) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[j][i] = __fmul_rn(values[j][i], factors[i % 2]);
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      sums[c] = __fmul_rn(sums[c], factors[c]);
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        minima[group][c] = __fmul_rn(minima[group][c], factors[c]);
    }
  }

  __device__ __forceinline__ void store(std::uint8_t* slot, int stored_lanes) const {
    const int place = stored_place(stored_lanes);
    if (place >= 0) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        slot_values<D>(slot)[j * stored_lanes + place] =
            make_float4(values[j][0], values[j][1], values[j][2], values[j][3]);
      }
    }
    const int lane = ptx::lane();
    if (lane >= 4) return;
    auto* rows = reinterpret_cast<float2*>(slot_rows<D>(slot, stored_lanes)) + lane;
    rows[0] = make_float2(maxima[0], maxima[1]);
    rows[4] = make_float2(sums[0], sums[1]);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      rows[4 * (2 + group)] = make_float2(minima[group][0], minima[group][1]);
    }
  }

  // Merges with the state of the keys before, which is in `slot`; `pending`: see close(), 1 after.
  __device__ __forceinline__ void merge_behind(std::uint8_t* slot, int stored_lanes,
                                               float (&pending)[2]) {
    const auto* rows =
        reinterpret_cast<const float2*>(slot_rows<D>(slot, stored_lanes)) + threadIdx.x % 4;
    const float2 earlier = rows[0];
    const float both[2] = {fmaxf(earlier.x, maxima[0]), fmaxf(earlier.y, maxima[1])};
    const float factor[2] = {power_of_two(earlier.x - both[0]), power_of_two(earlier.y - both[1])};
#pragma unroll
    for (int c = 0; c < 2; ++c) pending[c] *= power_of_two(maxima[c] - both[c]);
    scale(pending);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      maxima[c] = both[c];
      pending[c] = 1.0F;
    }
    const float2 s = rows[4];
    sums[0] += s.x * factor[0];
    sums[1] += s.y * factor[1];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const float2 m = rows[4 * (2 + group)];
      minima[group][0] += m.x * factor[0];
      minima[group][1] += m.y * factor[1];
    }
    const int place = stored_place(stored_lanes);
    if (place < 0) return;  // columns that nobody asks for
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const float4 v = slot_values<D>(slot)[j * stored_lanes + place];
      values[j][0] += v.x * factor[0];
      values[j][1] += v.y * factor[1];
      values[j][2] += v.z * factor[0];
      values[j][3] += v.w * factor[1];
    }
  }

 private:
  // With four heads and less, lanes of t < 2 alone hold any of them.
  __device__ static __forceinline__ int stored_place(int stored_lanes) {
    const int lane = ptx::lane();
    if (stored_lanes == 32) return lane;
    return lane % 4 < 2 ? lane / 4 * 2 + lane % 4 : -1;
  }
};

// A stored lane's number as g and t.
struct StoredLane {
  int g, t;
  __device__ __forceinline__ StoredLane(int place, int stored_lanes)
      : g(stored_lanes == 32 ? place / 4 : place / 2),
        t(stored_lanes == 32 ? place % 4 : place % 2) {}
};

}  // namespace fut::cuda
