// Products of a warpgroup with FP16 operands: 64 rows of A in registers, tokens in shared memory.
// PTX ISA, "wgmma.mma_async".
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/wgmma.cuh"

namespace fut::cuda::ptx {

// Tokens as operand B, K contiguous: for 64 columns a row of 128 bytes a token, rows of eight tokens
// swizzled as "128-byte swizzling" has it. Where column `k` (a multiple of 4, of 64) of a token stands:
// byte offset.
inline constexpr int kSwizzledColumns = 64;
__device__ __forceinline__ int swizzled_offset(int token, int k) {
  return token * 128 + (2 * k ^ token % 8 * 16);
}

// c[64 x 8 tiles] += a[64 x 16] b[16 x 8 tiles], FP16 operands, float32 sums. Warp w holds rows 16w .. of a
// and c in the fragments of mma.m16n8k16, tile after tile. Nothing may touch the registers before the wait.
__device__ __forceinline__ void wgmma_k16(float (&c)[1][4], const std::uint32_t (&a)[4],
                                          std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, "
      "1, "
      "1, 1, 0;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
      : "memory");
}
__device__ __forceinline__ void wgmma_k16(float (&c)[2][4], const std::uint32_t (&a)[4],
                                          std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),
        "+f"(c[1][2]), "+f"(c[1][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
      : "memory");
}
__device__ __forceinline__ void wgmma_k16(float (&c)[4][4], const std::uint32_t (&a)[4],
                                          std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
      "%10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),
        "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
        "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
      : "memory");
}

// c[i] += a[i] b[i] over kBlocks times 64 columns, kChains chains side by side, each ascending, and waits for
// them. The blocks of b lie one behind the other. Called by whole warpgroups.
template <int kTiles, int kChains, int kBlocks>
__device__ __forceinline__ void multiply_chains(float (&c)[kChains][kTiles][4],
                                                std::uint32_t (&a)[kChains][4 * kBlocks][4],
                                                const std::uint64_t (&b)[kChains]) {
  constexpr std::uint32_t kBlockStep = 8 * kTiles * 128 >> 4;
  constexpr std::uint32_t kColumnStep = 32 >> 4;  // 16 columns of 64
#pragma unroll
  for (int i = 0; i < kChains; ++i) {
    hold_registers(a[i]);
    hold_registers(c[i]);
  }
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4 * kBlocks; ++k) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) {
      wgmma_k16(c[i], a[i][k], descriptor_after(b[i], k / 4 * kBlockStep + k % 4 * kColumnStep));
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kChains; ++i) {
    hold_registers(a[i]);  // ptxas 13.0 may else give them to others while products still read them
    hold_registers(c[i]);
  }
}

// The same of one chain.
template <int kTiles, int kBlocks>
__device__ __forceinline__ void multiply_warpgroup(float (&c)[kTiles][4],
                                                   std::uint32_t (&a)[4 * kBlocks][4],
                                                   std::uint64_t b) {
  multiply_chains<kTiles, 1, kBlocks>(reinterpret_cast<float(&)[1][kTiles][4]>(c),
                                      reinterpret_cast<std::uint32_t(&)[1][4 * kBlocks][4]>(a),
                                      {b});
}

}  // namespace fut::cuda::ptx
