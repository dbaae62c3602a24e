// Products of a warpgroup for attention: probabilities in registers times values in shared memory, and the
// descriptor of values, whose rows are keys. PTX ISA, "wgmma.mma_async", "matrix descriptor format" and
// "strides" (MN-major).
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/wgmma.cuh"

namespace fut::cuda::ptx {

// Operand B with its rows along K: of each row 64 numbers of 16 bits in 128 bytes, in the swizzle of 128
// bytes, at a multiple of 1024 bytes; the next 64 of all rows lie `bytes_to_next_64` further on. A step
// of 16 rows adds kSixteenRows.
__device__ __forceinline__ std::uint64_t wgmma_rows_descriptor(std::uint32_t address,
                                                               std::uint32_t bytes_to_next_64) {
  return wgmma_descriptor(address) | static_cast<std::uint64_t>(bytes_to_next_64 >> 4) << 16;
}
inline constexpr std::uint64_t kSixteenRows = 16 * 128 >> 4;

// d[64 x 2 * kCount] += a b, BF16 operands; a[64 x 16] in the fragments of mma.m16n8k16, b of 16 rows as
// wgmma_rows_descriptor() has them, d as in wgmma.cuh. Nothing may touch the registers before the wait, a
// included: hold_registers() behind it, or ptxas 13.0 gives them to others while they are read.
#define FUT_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FUT_SUMS_16(i) FUT_SUMS_4(i), FUT_SUMS_4(i + 4), FUT_SUMS_4(i + 8), FUT_SUMS_4(i + 12)
__device__ __forceinline__ void wgmma_rows(float (&d)[64], const std::uint32_t (&a)[4],
                                           std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
      : FUT_SUMS_16(0), FUT_SUMS_16(16), FUT_SUMS_16(32), FUT_SUMS_16(48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
      : "memory");
}
__device__ __forceinline__ void wgmma_rows(float (&d)[32], const std::uint32_t (&a)[4],
                                           std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"
      : FUT_SUMS_16(0), FUT_SUMS_16(16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
      : "memory");
}
#undef FUT_SUMS_16
#undef FUT_SUMS_4

}  // namespace fut::cuda::ptx
