// Products of BF16 matrices, and their operands out of shared memory. PTX ISA, "mma", "ldmatrix" and
// "cvt".
#pragma once

#include <cstdint>

namespace fut::cuda::ptx {

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

// Four 8 x 8 matrices of 16-bit numbers; lane 8i + r gives the address of row r of matrix i, 16-byte
// aligned. Lane 4g + t gets of each matrix row g, columns 2t and 2t + 1.
__device__ __forceinline__ void load_matrices(std::uint32_t (&m)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}
// The same, of each matrix column g, rows 2t and 2t + 1.
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&m)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}

// Two BF16, `low` in the lower half, to the nearest, ties to even.
__device__ __forceinline__ std::uint32_t bf16x2(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

}  // namespace fut::cuda::ptx
