// Operands of mma.m16n8k16 out of shared memory and out of each other, BF16 products, and what softmax
// needs besides. PTX ISA, "ldmatrix", "movmatrix", "mma.m16n8k16 with floating point types", "ex2",
// "rcp", "cvt".
#pragma once

#include <cstdint>

namespace fut::cuda::ptx {

// Four 8 x 8 matrices of 16-bit numbers; lane i names row i % 8 of matrix i / 8 (16 bytes). Lane
// 4g + t receives columns 2t, 2t + 1 of row g of each.
__device__ __forceinline__ void load_matrices(std::uint32_t (&m)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}
// The same, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&m)[4],
                                                         std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// An 8 x 8 matrix held as above, transposed.
__device__ __forceinline__ std::uint32_t transposed(std::uint32_t fragment) {
  std::uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(fragment));
  return result;
}

// c[16 x 8] += a[16 x 16] b[16 x 8], BF16 operands, float32 sums. Lane 4g + t holds c of rows g (0, 1)
// and g + 8 (2, 3), columns 2t and 2t + 1; a of these rows in turns, columns 2t, 2t + 1 (0, 1) and
// 8 more (2, 3); b of column g, rows 2t, 2t + 1 (b0) and 8 more (b1).
__device__ __forceinline__ void mma_bf16_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4],
                                                  std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Ties to even; beyond the type's range to its largest number.
__device__ __forceinline__ std::uint16_t saturated_f16(float v) {
  std::uint16_t result;
  asm("cvt.rn.satfinite.f16.f32 %0, %1;" : "=h"(result) : "f"(v));
  return result;
}
__device__ __forceinline__ std::uint8_t saturated_e4m3(float v) {
  std::uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0F), "f"(v));
  return static_cast<std::uint8_t>(pair);
}
__device__ __forceinline__ float low_f16(std::uint32_t pair) {
  float result;
  asm("{\n.reg .f16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}"
      : "=f"(result)
      : "r"(pair));
  return result;
}
__device__ __forceinline__ float high_f16(std::uint32_t pair) {
  float result;
  asm("{\n.reg .f16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, high;\n}"
      : "=f"(result)
      : "r"(pair));
  return result;
}

// 2^x, wrong by 2^-22 of itself at most; 2^0 is 1, 2^-inf is 0, and what would be subnormal is 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 1 / x, to the nearest.
__device__ __forceinline__ float reciprocal(float x) {
  float result;
  asm("rcp.rn.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 1 / x, wrong by one unit in the last place at most.
__device__ __forceinline__ float reciprocal_fast(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace fut::cuda::ptx
