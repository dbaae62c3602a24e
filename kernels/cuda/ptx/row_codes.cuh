// Conversions of 8-bit codes to operands. PTX ISA, "cvt" and "prmt".
#pragma once

#include <cstdint>

namespace fut::cuda::ptx {

// Four E4M3 codes as FP16 numbers, exact: codes 0, 1 and codes 2, 3.
__device__ __forceinline__ void widen_e4m3(std::uint32_t& low, std::uint32_t& high,
                                           std::uint32_t codes) {
  asm("{\n"
      ".reg .b16 a, b;\n"
      "mov.b32 {a, b}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, a;\n"
      "cvt.rn.f16x2.e4m3x2 %1, b;\n"
      "}\n"
      : "=r"(low), "=r"(high)
      : "r"(codes));
}

// Four signed bytes as FP16 numbers, exact: a byte under 0x64 is 1024 + code + 128.
__device__ __forceinline__ void widen_int8(std::uint32_t& low, std::uint32_t& high,
                                           std::uint32_t codes) {
  const std::uint32_t biased = codes ^ 0x80808080U;
  constexpr std::uint32_t kMagic = 0x64646464U;
  constexpr std::uint32_t kBias = 0x64806480U;  // 1024 + 128, twice
  asm("sub.f16x2 %0, %1, %2;" : "=r"(low) : "r"(__byte_perm(biased, kMagic, 0x4140)), "r"(kBias));
  asm("sub.f16x2 %0, %1, %2;" : "=r"(high) : "r"(__byte_perm(biased, kMagic, 0x4342)), "r"(kBias));
}

// E4M3(v) of two numbers, to the nearest, saturating, as FP16 numbers; the first in the low half.
__device__ __forceinline__ std::uint32_t to_e4m3_in_f16_pair(float first, float second) {
  std::uint32_t pair;
  asm("{\n"
      ".reg .b16 codes;\n"
      "cvt.rn.satfinite.e4m3x2.f32 codes, %1, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, codes;\n"
      "}\n"
      : "=r"(pair)
      : "f"(second), "f"(first));
  return pair;
}

__device__ __forceinline__ float2 f16_pair_to_f32(std::uint32_t pair) {
  float2 v;
  asm("{\n"
      ".reg .b16 a, b;\n"
      "mov.b32 {a, b}, %2;\n"
      "cvt.f32.f16 %0, a;\n"
      "cvt.f32.f16 %1, b;\n"
      "}\n"
      : "=f"(v.x), "=f"(v.y)
      : "r"(pair));
  return v;
}

}  // namespace fut::cuda::ptx
