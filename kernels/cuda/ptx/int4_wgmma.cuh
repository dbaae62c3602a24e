// Products of a warpgroup: 64 rows of A in registers, tokens in shared memory.
// PTX ISA, "Asynchronous warpgroup level matrix instructions": wgmma.mma_async, wgmma.fence,
// wgmma.commit_group, wgmma.wait_group, and "Matrix descriptor format".
#pragma once

#include <cstdint>

namespace fut::cuda::ptx {

// Tokens as operand B, K contiguous: for 64 columns a row of 128 bytes a token, rows of eight tokens
// swizzled as "128-byte swizzling" has it. Where column `k` (a multiple of 4, of 64) of a token stands:
// byte offset. The begin has to be a multiple of kSwizzleBytes.
inline constexpr int kSwizzleBytes = 1024;
inline constexpr int kSwizzledColumns = 64;
__device__ __forceinline__ int swizzled_offset(int token, int k) {
  return token * 128 + (2 * k ^ token % 8 * 16);
}

// Of `address`, in shared memory, a multiple of kSwizzleBytes. The next 16 columns of the 64: plus
// kDescriptorStep.
inline constexpr std::uint64_t kDescriptorStep = 32 >> 4;
__device__ __forceinline__ std::uint64_t swizzled_descriptor(std::uint32_t address) {
  constexpr std::uint64_t kSwizzle128 = 1ULL << 62;
  constexpr std::uint64_t kStride = std::uint64_t{kSwizzleBytes >> 4} << 32;  // eight tokens on
  constexpr std::uint64_t kLeading = 1ULL << 16;  // not used with a swizzle
  return (address & 0x3FFFF) >> 4 | kLeading | kStride | kSwizzle128;
}

// Shared memory that was written by ordinary stores of this thread may be read by wgmma after the next
// barrier. PTX ISA, "Async proxy".
__device__ __forceinline__ void order_stores_before_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// c[64 x 8 tiles] += a[64 x 16] b[16 x 8 tiles], FP16 operands, float32 sums. Warp w holds rows 16w .. of a
// and c in the fragments of mma.m16n8k16, tile after tile. Nothing may touch the registers before the wait.
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
__device__ __forceinline__ void wgmma_k16(float (&c)[3][4], const std::uint32_t (&a)[4],
                                          std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
      "%10, %11}, {%12, %13, %14, %15}, %16, 1, 1, 1, 0;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),
        "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3])
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

// This thread's warp in its block, in a way that the compiler knows to be the same for all lanes: without
// it, it takes products of a warpgroup under a condition for ones that may have to wait for each other.
__device__ __forceinline__ int warp_index() {
  return __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x / 32), 0);
}

// The compiler takes these registers for read and written here: no use of theirs moves across.
template <int kCount>
__device__ __forceinline__ void pin(std::uint32_t (&registers)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile(""
                 : "+r"(registers[i][0]), "+r"(registers[i][1]), "+r"(registers[i][2]),
                   "+r"(registers[i][3])::"memory");
  }
}
template <int kCount>
__device__ __forceinline__ void pin(float (&registers)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile(""
                 : "+f"(registers[i][0]), "+f"(registers[i][1]), "+f"(registers[i][2]),
                   "+f"(registers[i][3])::"memory");
  }
}

// c += a b over kBlocks times 64 columns, ascending, and waits for it. The blocks of b lie one behind the
// other. Called by whole warpgroups.
template <int kTiles, int kBlocks>
__device__ __forceinline__ void multiply_warpgroup(float (&c)[kTiles][4],
                                                   std::uint32_t (&a)[4 * kBlocks][4],
                                                   std::uint64_t b) {
  constexpr std::uint64_t kBlockStep = 8 * kTiles * 128 >> 4;
  pin(a);
  pin(c);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < 4 * kBlocks; ++k) {
    wgmma_k16(c, a[k], b + k / 4 * kBlockStep + k % 4 * kDescriptorStep);
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  pin(a);  // until here: ptxas 13.0 may else give them to others while products still read them
  pin(c);
}

}  // namespace fut::cuda::ptx
