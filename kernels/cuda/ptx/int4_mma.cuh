// INT4 codes to operands of mma.m16n8k16, and the instruction itself. Which nibble becomes which
// element is layout/int4_tile.h.
#pragma once

#include <cstdint>

#include "kernels/layout/int4_tile.h"

namespace fut::cuda::ptx {

// (word & mask) | magic in one instruction; written out, the compiler makes two of it.
__device__ __forceinline__ std::uint32_t masked_or(std::uint32_t word, std::uint32_t mask,
                                                   std::uint32_t magic) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(word), "r"(mask), "r"(magic));
  return result;
}

__device__ __forceinline__ std::uint32_t subtract_half2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

// The masks of layout/int4_tile.h in registers, so that the magic numbers can be the one constant
// that an instruction may hold.
struct Int4Masks {
  std::uint32_t low = layout::kInt4LowMask;
  std::uint32_t high = layout::kInt4HighMask;

  __device__ __forceinline__ Int4Masks() { asm volatile("" : "+r"(low), "+r"(high)); }
};

// The eight codes of a word as FP16 numbers -8 .. 7, exact: operand A of one lane.
__device__ __forceinline__ void unpack_codes(std::uint32_t (&a)[4], std::uint32_t word,
                                             const Int4Masks& masks) {
  // What code 0 unpacks to, twice: an FP16 has steps of 1 from 1024 on, and of 1/16 from 64 on.
  constexpr std::uint32_t kLowBias = layout::kInt4LowMagic + layout::kInt4CodeBias * 0x00010001U;
  constexpr std::uint32_t kHighBias =
      layout::kInt4HighMagic + 16 * layout::kInt4CodeBias * 0x00010001U;
  const std::uint32_t shifted = word >> 8;
  a[0] = subtract_half2(masked_or(word, masks.low, layout::kInt4LowMagic), kLowBias);
  a[1] = subtract_half2(masked_or(word, masks.high, layout::kInt4HighMagic), kHighBias);
  a[2] = subtract_half2(masked_or(shifted, masks.low, layout::kInt4LowMagic), kLowBias);
  a[3] = subtract_half2(masked_or(shifted, masks.high, layout::kInt4HighMagic), kHighBias);
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
