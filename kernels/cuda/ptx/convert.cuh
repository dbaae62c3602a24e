// Conversions between number formats, one wrapper for an instruction. PTX ISA, "cvt".
#pragma once

#include <cstdint>

namespace fut::cuda::ptx {

// Two numbers of 16 bits, `low` in the lower half, to the nearest, ties to even.
__device__ __forceinline__ std::uint32_t f16x2(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ std::uint32_t bf16x2(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Two F16, `low` in the lower half, to the nearest, ties to even; beyond F16's range its largest
// number, a NaN stays one.
__device__ __forceinline__ std::uint32_t f16x2_saturating(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Two E4M3, `low` in the lower byte, to the nearest, ties to even; beyond E4M3's range its largest
// number, a NaN stays one.
__device__ __forceinline__ std::uint16_t e4m3x2(float low, float high) {
  std::uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

}  // namespace fut::cuda::ptx
