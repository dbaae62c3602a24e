// Matrix products of a warpgroup: what all of them need, and those with both operands in shared memory.
// PTX ISA, "Asynchronous warpgroup level matrix instructions": "wgmma.mma_async", "matrix descriptor
// format", "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group".
#pragma once

#include <cstdint>

namespace fut::cuda::ptx {

// What the operands are; an instruction takes 32 bytes of each row.
struct E4m3Operands {};
struct Bf16Operands {};

// Rows of 128 bytes in the swizzle of 128 bytes, eight rows after eight, at a multiple of 1024 bytes. A
// step of 32 bytes along the rows adds 2.
__device__ __forceinline__ std::uint64_t wgmma_descriptor(std::uint32_t address) {
  constexpr std::uint64_t kEightRows = 8 * 128;
  constexpr std::uint64_t kSwizzle128 = 1;
  return (address & 0x3FFFFU) >> 4 | kEightRows >> 4 << 32 | kSwizzle128 << 62;
}

// A descriptor some 16 bytes further on. Addresses never carry over into the upper half, which the compiler
// cannot know; so it is told, and computes half as much for each product.
__device__ __forceinline__ std::uint64_t descriptor_after(std::uint64_t descriptor,
                                                          std::uint32_t steps) {
  constexpr std::uint64_t kUpper = 0xFFFFFFFFULL << 32;
  return (descriptor & kUpper) | (static_cast<std::uint32_t>(descriptor) + steps);
}

// Before the first product, and after any other use of the sums' registers.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Ends a group of products.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending groups of this warp are under way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// No use of the registers moves across.
template <int kCount>
__device__ __forceinline__ void hold_registers(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void hold_registers(std::uint32_t (&a)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(a[i])::"memory");
}
template <class T, int kRows, int kCount>
__device__ __forceinline__ void hold_registers(T (&rows)[kRows][kCount]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) hold_registers(rows[i]);
}

// d[64 x 2 * kCount] = a b^T (+ d where `accumulate` is not 0), a of 64 rows and b of 2 * kCount. Lane
// 4g + t of warp w holds rows 16w + g (d[4j], d[4j + 1]) and 8 more (d[4j + 2], d[4j + 3]) of columns
// 8j + 2t and 8j + 2t + 1.
#define FUT_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FUT_SUMS_16(i) FUT_SUMS_4(i), FUT_SUMS_4(i + 4), FUT_SUMS_4(i + 8), FUT_SUMS_4(i + 12)
__device__ __forceinline__ void wgmma(E4m3Operands, float (&d)[128], std::uint64_t a,
                                      std::uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, "
      "%69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
      "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, "
      "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, "
      "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, accumulate, 1, 1;\n}\n"
      : FUT_SUMS_16(0), FUT_SUMS_16(16), FUT_SUMS_16(32), FUT_SUMS_16(48), FUT_SUMS_16(64),
        FUT_SUMS_16(80), FUT_SUMS_16(96), FUT_SUMS_16(112)
      : "l"(a), "l"(b), "r"(accumulate));
}
__device__ __forceinline__ void wgmma(Bf16Operands, float (&d)[128], std::uint64_t a,
                                      std::uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, "
      "%69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
      "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, "
      "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, "
      "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, accumulate, 1, 1, 0, 0;\n}\n"
      : FUT_SUMS_16(0), FUT_SUMS_16(16), FUT_SUMS_16(32), FUT_SUMS_16(48), FUT_SUMS_16(64),
        FUT_SUMS_16(80), FUT_SUMS_16(96), FUT_SUMS_16(112)
      : "l"(a), "l"(b), "r"(accumulate));
}
__device__ __forceinline__ void wgmma(E4m3Operands, float (&d)[64], std::uint64_t a,
                                      std::uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, accumulate, 1, 1;\n}\n"
      : FUT_SUMS_16(0), FUT_SUMS_16(16), FUT_SUMS_16(32), FUT_SUMS_16(48)
      : "l"(a), "l"(b), "r"(accumulate));
}
__device__ __forceinline__ void wgmma(Bf16Operands, float (&d)[64], std::uint64_t a,
                                      std::uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, accumulate, 1, 1, 0, 0;\n}\n"
      : FUT_SUMS_16(0), FUT_SUMS_16(16), FUT_SUMS_16(32), FUT_SUMS_16(48)
      : "l"(a), "l"(b), "r"(accumulate));
}
__device__ __forceinline__ void wgmma(Bf16Operands, float (&d)[32], std::uint64_t a,
                                      std::uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, accumulate, 1, 1, 0, 0;\n}\n"
      : FUT_SUMS_16(0), FUT_SUMS_16(16)
      : "l"(a), "l"(b), "r"(accumulate));
}
#undef FUT_SUMS_16
#undef FUT_SUMS_4

}  // namespace fut::cuda::ptx
