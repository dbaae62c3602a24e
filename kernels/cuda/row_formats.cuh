// What the row product makes of each kind of weight: the operand of a token, the products of one
// chunk, and what multiplies a finished sum. And how a token becomes the operand: rows of x, F32,
// BF16 or E4M3, normalised or not.
//
// Within a chunk a lane's codes are neighbours of one row, and the four columns that one instruction
// takes from them are neighbours too: operands of tokens lie in natural order.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/int4_mma.cuh"
#include "kernels/cuda/ptx/matrix_fragments.cuh"
#include "kernels/cuda/ptx/row_codes.cuh"
#include "kernels/cuda/rms.cuh"
#include "kernels/cuda/row_gemm_plan.h"
#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/formats.h"
#include "kernels/tensor.h"

namespace fut::cuda {

// When r = 1 / rms of a token is used.
enum class RowNorm { None, BeforeRounding, OnResult };

struct Bf16Rows {
  static constexpr int kCodeBytes = 2;

  __device__ static uint2 operand(const float4& v) {
    return make_uint2(ptx::bf16x2(v.x, v.y), ptx::bf16x2(v.z, v.w));
  }

  template <int kTiles>
  __device__ __forceinline__ static void multiply(float (&sums)[kTiles][4], const uint4& lower,
                                                  const uint4& upper,
                                                  const std::uint32_t (&tokens)[kTiles],
                                                  int chunk) {
    const std::uint32_t place = chunk * kRowChunkBytes + threadIdx.x % 4 * 16;
    const std::uint32_t a[2][4] = {{lower.x, upper.x, lower.y, upper.y},
                                   {lower.z, upper.z, lower.w, upper.w}};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint4 b = ptx::load_shared_16(tokens[n] + place);
      ptx::mma_bf16_m16n8k16(sums[n], a[0], b.x, b.y);
      ptx::mma_bf16_m16n8k16(sums[n], a[1], b.z, b.w);
    }
  }

  __device__ static float finish(float sum, const float*, int, float, float) {
    return sum;
  }
};

// Codes of one byte, which `Widen` turns into FP16 numbers.
template <class Widen>
struct ByteRows {
  static constexpr int kCodeBytes = 1;

  // Codes 0, 1 and codes 2, 3 of a word.
  __device__ static void widen(std::uint32_t& low, std::uint32_t& high, std::uint32_t codes) {
    Widen::widen(low, high, codes);
  }

  template <int kTiles>
  __device__ __forceinline__ static void multiply(float (&sums)[kTiles][4], const uint4& lower,
                                                  const uint4& upper,
                                                  const std::uint32_t (&tokens)[kTiles],
                                                  int chunk) {
    const std::uint32_t place = chunk * 2 * kRowChunkBytes + threadIdx.x % 4 * 32;
    const std::uint32_t low_words[4] = {lower.x, lower.y, lower.z, lower.w};
    const std::uint32_t up_words[4] = {upper.x, upper.y, upper.z, upper.w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Widen::widen(a[i][0], a[i][2], low_words[2 * half + i]);
        Widen::widen(a[i][1], a[i][3], up_words[2 * half + i]);
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint4 b = ptx::load_shared_16(tokens[n] + place + 16 * half);
        ptx::mma_m16n8k16(sums[n], a[0], b.x, b.y);
        ptx::mma_m16n8k16(sums[n], a[1], b.z, b.w);
      }
    }
  }
};

struct WidenE4m3 {
  __device__ static void widen(std::uint32_t& low, std::uint32_t& high, std::uint32_t codes) {
    ptx::widen_e4m3(low, high, codes);
  }
};
struct WidenInt8 {
  __device__ static void widen(std::uint32_t& low, std::uint32_t& high, std::uint32_t codes) {
    ptx::widen_int8(low, high, codes);
  }
};

struct E4m3Rows : ByteRows<WidenE4m3> {
  __device__ static uint2 operand(const float4& v) {
    return make_uint2(ptx::to_e4m3_in_f16_pair(v.x, v.y), ptx::to_e4m3_in_f16_pair(v.z, v.w));
  }
  __device__ static float finish(float sum, const float* row_scales, int row, float factor, float) {
    return __fmul_rn(sum, row_scales[row] * factor);
  }
};

struct Int8Rows : ByteRows<WidenInt8> {
  __device__ static float saturated(float v) {
    constexpr float kF16Max = 65504.0F;
    return v > kF16Max ? kF16Max : v < -kF16Max ? -kF16Max : v;  // a NaN stays one
  }
  __device__ static uint2 operand(const float4& v) {
    return make_uint2(ptx::f16x2(saturated(v.x), saturated(v.y)),
                      ptx::f16x2(saturated(v.z), saturated(v.w)));
  }
  __device__ static float finish(float sum, const float* row_scales, int row, float, float r) {
    return __fmul_rn(__fmul_rn(sum, row_scales[row]), r);
  }
};

// 1 / rms by a whole warp from the sums of the segments of K, as a balanced binary tree.
__device__ __forceinline__ float warp_inverse_rms(const float* segments, int stride, int cols,
                                                  float eps) {
  float squares = segments[threadIdx.x % layout::kNumKSegments * stride];
#pragma unroll
  for (int distance = 1; distance < layout::kNumKSegments; distance *= 2) {
    squares += __shfl_xor_sync(0xFFFFFFFFU, squares, distance);
  }
  return inverse_rms(squares, cols, eps);
}

__device__ __forceinline__ float add_squares(const float4& v, float squares) {
  squares = fmaf(v.x, v.x, squares);
  squares = fmaf(v.y, v.y, squares);
  squares = fmaf(v.z, v.z, squares);
  return fmaf(v.w, v.w, squares);
}

__device__ __forceinline__ float4 times(const float4& v, float factor) {
  return make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
}

// The tokens of a launch.
struct RowTokens {
  const void* x = nullptr;
  DType dtype = DType::F32;
  bool in_fours = true;            // four numbers of a row may be read at once
  bool in_sixteens = false;        // so may 16 bytes
  bool is_ready = false;           // x holds operands of 16 bits, up to the end of the last chunk
  const float* factors = nullptr;  // of ready ones with RowNorm::OnResult: r of each token
  std::int64_t row_stride = 0;
  const std::int32_t* rows = nullptr;  // which row of x each token is; null: in order
  float eps = 0;
  float scale = 1;  // multiplies what has been normalised; so chosen that nothing saturates

  // Where a token's numbers begin, in elements.
  [[nodiscard]] __device__ std::int64_t begin(int token) const {
    return (rows == nullptr ? token : rows[token]) * row_stride;
  }

  // Four numbers, widened; `i` in elements. What has been normalised never was E4M3.
  template <bool kMayBeE4m3>
  [[nodiscard]] __device__ float4 load(std::int64_t i) const {
    if (dtype == DType::F32) {
      const float* v = static_cast<const float*>(x) + i;
      if (in_fours) return *reinterpret_cast<const float4*>(v);
      return make_float4(v[0], v[1], v[2], v[3]);
    }
    if (!kMayBeE4m3 || dtype == DType::BF16) {
      const std::uint16_t* v = static_cast<const std::uint16_t*>(x) + i;
      if (!in_fours) {
        return make_float4(bf16_to_f32(v[0]), bf16_to_f32(v[1]), bf16_to_f32(v[2]),
                           bf16_to_f32(v[3]));
      }
      const uint2 pairs = *reinterpret_cast<const uint2*>(v);
      return make_float4(__uint_as_float(pairs.x << 16), __uint_as_float(pairs.x & 0xFFFF0000U),
                         __uint_as_float(pairs.y << 16), __uint_as_float(pairs.y & 0xFFFF0000U));
    }
    const std::uint8_t* v = static_cast<const std::uint8_t*>(x) + i;
    if (!in_fours) {
      return make_float4(e4m3_to_f32(v[0]), e4m3_to_f32(v[1]), e4m3_to_f32(v[2]),
                         e4m3_to_f32(v[3]));
    }
    std::uint32_t low, high;
    ptx::widen_e4m3(low, high, *reinterpret_cast<const std::uint32_t*>(v));
    const float2 first = ptx::f16_pair_to_f32(low);
    const float2 second = ptx::f16_pair_to_f32(high);
    return make_float4(first.x, first.y, second.x, second.y);
  }
};

}  // namespace fut::cuda
