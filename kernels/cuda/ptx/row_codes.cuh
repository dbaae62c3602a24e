// Copies of 16 bytes that a thread waits for itself, conversions of 8-bit codes to operands, and the
// BF16 matrix instruction. PTX ISA, "cp.async", "cvt", "prmt" and "mma".
#pragma once

#include <cstdint>

namespace fut::cuda::ptx {

// What createpolicy.fractional.L2::evict_first gives for all of the lines: a constant needs no register.
inline constexpr std::uint64_t kEvictFirst = 0x12F0000000000000U;

// Starts to copy 16 bytes from global to shared memory; with `bytes` 0 writes zeros instead.
__device__ __forceinline__ void copy_16(std::uint32_t destination, const void* source,
                                        std::uint32_t bytes, std::uint64_t policy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(destination),
      "l"(source), "r"(bytes), "l"(policy)
      : "memory");
}

// The same for what others will read as well.
__device__ __forceinline__ void copy_16(std::uint32_t destination, const void* source,
                                        std::uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(bytes)
               : "memory");
}

// Closes a group of copies; an empty one counts as well.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

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

__device__ __forceinline__ std::uint32_t to_f16_pair(float first, float second) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
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

__device__ __forceinline__ std::uint32_t to_bf16_pair(float first, float second) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

// As mma_m16n8k16 of int4_mma.cuh, with BF16 operands.
__device__ __forceinline__ void mma_bf16_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4],
                                                  std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace fut::cuda::ptx
