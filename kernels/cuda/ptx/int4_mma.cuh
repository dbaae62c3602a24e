// INT4 codes to operands of mma.m16n8k16, and the instruction itself. Which nibble becomes which
// element is layout/int4_tile.h.
#pragma once

#include <cstdint>

#include "kernels/layout/int4_tile.h"

namespace fut::cuda::ptx {

// The eight codes of a word as subnormal FP16 numbers, exact: operand A of one lane. What they are is
// u * kInt4LowUnit in registers 0 and 2, u * kInt4HighUnit in 1 and 3.
__device__ __forceinline__ void unpack_codes(std::uint32_t (&a)[4], std::uint32_t word) {
  const std::uint32_t shifted = word >> 8;
  a[0] = word & layout::kInt4LowMask;
  a[1] = word & layout::kInt4HighMask;
  a[2] = shifted & layout::kInt4LowMask;
  a[3] = shifted & layout::kInt4HighMask;
}

// Operand A, all columns alike, whose product with a group's tokens is what their sums start from: the
// bias of the stored codes times the sum of the inputs, taken off.
__device__ __forceinline__ void bias_operand(std::uint32_t (&a)[4]) {
  // Of a subnormal FP16 the bits are the number over 2^-24.
  constexpr std::uint32_t kSign = 0x80008000U;
  constexpr std::uint32_t kLow = kSign | layout::kInt4CodeBias * 0x00010001U;
  constexpr std::uint32_t kHigh = kSign | 16 * layout::kInt4CodeBias * 0x00010001U;
  a[0] = a[2] = kLow;
  a[1] = a[3] = kHigh;
}

// c[16 x 8] += a[16 x 16] b[16 x 8], FP16 operands, float32 sums. A lane 4g + t holds c of rows g
// (0, 1) and g + 8 (2, 3), columns 2t and 2t + 1.
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace fut::cuda::ptx
