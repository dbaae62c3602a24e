// What a warpgroup does with its scores and sums in registers: mask, softmax, probabilities as operand A,
// results. Lane 4g + t of a warp holds rows g and g + 8 of its 16, columns 8n + 2t and 8n + 2t + 1: number
// 4n + 2r + i of an array is row g + 8r, column 8n + 2t + i.
//
// Precision. Probabilities are 2^(score * c - m), c = log2(e) / sqrt(D) and m the largest score * c so far,
// both rounded: the product and the difference are rounded once, 2^x is wrong by 2^-22 of itself at most.
// Of a probability in BF16 that is little; m, rounded or not, leaves the quotient.
#pragma once

#include <cmath>

#include "kernels/cuda/prompt_attention.h"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/matrix_fragments.cuh"
#include "kernels/numeric/e4m3.h"

namespace fut::cuda {

inline constexpr int kScores = kTileKeys / 2;  // of a thread

// The functions below take the first kKeys keys of a tile: all, or half of them.

// Of both rows of a thread.
struct RunningRows {
  float top[2] = {-INFINITY, -INFINITY};  // the largest score, times `scale`
  float sum[2] = {};                      // of the lane's own columns
};

// Keys behind a row's own position count for nothing. last[r]: that position, counted from the tile's
// first key on, less 2t.
template <int kKeys>
__device__ __forceinline__ void mask_scores(float (&scores)[kScores], const int (&last)[2]) {
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (8 * n + i % 2 > last[i / 2]) scores[4 * n + i] = -INFINITY;
    }
  }
}

// Scores to probabilities under the maximum so far; factors: what sums under the earlier one are to be
// multiplied with. A row sees its first key in its first tile, so that the maximum is a number.
template <int kKeys>
__device__ __forceinline__ void softmax_step(float (&scores)[kScores], float scale,
                                             RunningRows& rows, float (&factors)[2]) {
  constexpr unsigned kAllLanes = 0xFFFFFFFFU;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top[2] = {scores[2 * r], scores[2 * r + 1]};
#pragma unroll
    for (int n = 1; n < kKeys / 8; ++n) {
      top[0] = fmaxf(top[0], scores[4 * n + 2 * r]);
      top[1] = fmaxf(top[1], scores[4 * n + 2 * r + 1]);
    }
    float highest = fmaxf(top[0], top[1]);
    highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 2));
    const float before = rows.top[r];
    rows.top[r] = fmaxf(before, __fmul_rn(highest, scale));
    factors[r] = ptx::exp2_fast(before - rows.top[r]);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sums[2] = {};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[4 * n + 2 * r + i];
        score = ptx::exp2_fast(fmaf(score, scale, -rows.top[r]));
        sums[i] += score;
      }
    }
    rows.sum[r] = rows.sum[r] * factors[r] + (sums[0] + sums[1]);
  }
}

// Operand A of the product with values, 16 keys after 16.
template <int kKeys>
__device__ __forceinline__ void round_probabilities(const float (&p)[kScores],
                                                    std::uint32_t (&a)[kTileKeys / 16][4]) {
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[k][i] = ptx::bf16x2(p[8 * k + 2 * i], p[8 * k + 2 * i + 1]);
  }
}

// Rounded by itself, whatever is added afterwards.
template <int kCount>
__device__ __forceinline__ void scale_sums(float (&sums)[kCount], const float (&factors)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = __fmul_rn(sums[i], factors[i / 2 % 2]);
}

// Division of many numbers by the same one, rounded as a division is: with the reciprocal to the nearest, a
// remainder brings a quotient that is off by a unit or two to the nearest (Markstein), the first time at
// least to a neighbour of it.
class Divisor {
 public:
  __device__ __forceinline__ explicit Divisor(float divisor)
      : divisor_(divisor), reciprocal_(ptx::reciprocal(divisor)) {}
  [[nodiscard]] __device__ __forceinline__ float divide(float v) const {
    float quotient = __fmul_rn(v, reciprocal_);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // An infinite quotient has no rest.
      const bool finite = quotient - quotient == 0.0F;
      const float rest = finite ? fmaf(-divisor_, quotient, v) : 0.0F;
      quotient = fmaf(rest, reciprocal_, quotient);
    }
    return quotient;
  }

 private:
  float divisor_, reciprocal_;
};

// words[i] of the quad's lane t become words[t] of lane i.
__device__ __forceinline__ void transpose_in_quad(std::uint32_t (&words)[4]) {
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    const bool upper = (threadIdx.x & static_cast<unsigned>(distance)) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & distance) != 0) continue;
      const std::uint32_t given = upper ? words[i] : words[i + distance];
      const std::uint32_t taken = __shfl_xor_sync(0xFFFFFFFFU, given, distance);
      words[i] = upper ? taken : words[i];
      words[i + distance] = upper ? words[i + distance] : taken;
    }
  }
}

// A row of one head's results, of which a lane has two in every eight.
class ResultRow {
 public:
  __device__ __forceinline__ ResultRow(const PromptAttentionArgs& args, int token, int head,
                                       int kv_head, bool exists)
      : args_(args),
        begin_(token * args.out_stride + std::int64_t{head} * args.page.head_dim),
        scale_(args.out_scales == nullptr ? 1.0F : args.out_scales[kv_head]),
        exists_(exists) {}

  // Row r of `sums`, divided; how many numbers were clipped. Whole warps.
  template <int kCount>
  __device__ __forceinline__ unsigned store(const float (&sums)[kCount], int r,
                                            const Divisor& divisor) const {
    float values[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      values[i] = divisor.divide(sums[4 * (i / 2) + 2 * r + i % 2]);
    }
    if (args_.out_dtype == DType::E4M3) return store_bytes(values);
#pragma unroll
    for (int first = 0; first < kCount / 4; first += 4) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = values[2 * (first + i)];
        const float high = values[2 * (first + i) + 1];
        words[i] = args_.out_dtype == DType::BF16 ? ptx::bf16x2(low, high)
                                                  : ptx::f16x2_saturating(low, high);
      }
      if (args_.out_in_sixteens) {
        transpose_in_quad(words);
        put(2 * (begin_ + 8 * first + 8 * lane_of_quad()), words);
      } else {
        put_apart<std::uint16_t>(first, words);
      }
    }
    return 0;
  }

 private:
  [[nodiscard]] __device__ __forceinline__ static int lane_of_quad() {
    return static_cast<int>(threadIdx.x) % 4;
  }
  __device__ __forceinline__ void put(std::int64_t byte, const std::uint32_t (&words)[4]) const {
    if (!exists_) return;
    *reinterpret_cast<uint4*>(static_cast<std::uint8_t*>(args_.out) + byte) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
  // words[i]: of eight columns the two of this lane, or (bytes) those of two times eight.
  template <class Number>
  __device__ __forceinline__ void put_apart(int first_eight,
                                            const std::uint32_t (&words)[4]) const {
    if (!exists_) return;
    constexpr int kNumbers = 4 / static_cast<int>(sizeof(Number));
    constexpr int kBits = 8 * static_cast<int>(sizeof(Number));
    auto* row = static_cast<Number*>(args_.out) + begin_ + 2 * lane_of_quad();
#pragma unroll
    for (int i = 0; i < 4 * kNumbers; ++i) {
      row[8 * (first_eight + i / 2) + i % 2] =
          static_cast<Number>(words[i / kNumbers] >> (i % kNumbers * kBits));
    }
  }

  template <int kCount>
  __device__ __forceinline__ unsigned store_bytes(const float (&values)[kCount]) const {
    unsigned clipped = 0;
#pragma unroll
    for (int first = 0; first < kCount / 2; first += 8) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* own = values + 2 * first + 4 * i;
        float scaled[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          scaled[k] = own[k] * scale_;
          clipped += exists_ && e4m3_saturates(scaled[k]) ? 1 : 0;
        }
        words[i] = ptx::e4m3x2(scaled[0], scaled[1]) |
                   static_cast<std::uint32_t>(ptx::e4m3x2(scaled[2], scaled[3])) << 16;
      }
      if (args_.out_in_sixteens) {
        transpose_in_quad(words);
        // Two times eight columns: of either a half word from each lane.
        const std::uint32_t sixteen[4] = {
            __byte_perm(words[0], words[1], 0x5410), __byte_perm(words[2], words[3], 0x5410),
            __byte_perm(words[0], words[1], 0x7632), __byte_perm(words[2], words[3], 0x7632)};
        put(begin_ + 8 * first + 16 * lane_of_quad(), sixteen);
      } else {
        put_apart<std::uint8_t>(first, words);
      }
    }
    return clipped;
  }

  const PromptAttentionArgs& args_;
  std::int64_t begin_;
  float scale_;
  bool exists_;
};

}  // namespace fut::cuda
