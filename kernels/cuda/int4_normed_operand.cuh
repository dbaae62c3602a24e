// Operand B of INT4 projections where tokens are a float32 residual that a norm goes over: rounded to F16 as
// they are; 1 / rms multiplies the result. Squares are added lane by lane of the warp that has a segment
// of K, then over lanes, then over segments, always in this order.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/convert.cuh"

namespace fut::cuda {

struct NormedOperand {
  static constexpr bool kNormalised = true;
  const float* x;  // 16-byte aligned
  std::int64_t stride;
  float eps;

  // Columns k .. k + 3 of a token; adds their squares.
  __device__ uint2 load(int token, int k, float& squares) const {
    const float4 v = *reinterpret_cast<const float4*>(x + token * stride + k);
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    return make_uint2(ptx::f16x2_saturating(v.x, v.y), ptx::f16x2_saturating(v.z, v.w));
  }
};

}  // namespace fut::cuda
