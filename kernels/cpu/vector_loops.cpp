// Compiles vector_loops.inc once for each instruction set. The target attribute on each function,
// rather than flags on a whole file, keeps inline functions of the standard library from being
// compiled for an instruction set that the machine may lack. None of the sets includes fused
// multiply-add, which would round differently.
#include "kernels/cpu/vector_loops.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/dot.h"
#include "kernels/numeric/formats.h"

namespace fut::cpu {
namespace {

// Column i of a weight row, for the columns that fill no register.
inline float scalar_weight(DType dtype, const void* row, std::int64_t i) {
  if (dtype == DType::F32) return static_cast<const float*>(row)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(row)[i];
  return dtype == DType::BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

typedef float FourFloats __attribute__((vector_size(16)));

// The pairwise additions of dot.h for four dot products at a time: the same order, of which the last
// two rounds work on all four.
inline FourFloats add_partial_sums_of_four(const float (&sums)[4][kPartialSums]) {
  FourFloats four[4];
  for (int n = 0; n < 4; ++n) {
    FourFloats lanes[4];
    std::memcpy(lanes, sums[n], sizeof(lanes));
    four[n] = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);  // l and l+8, then l and l+4
  }
  const FourFloats pairs01 = __builtin_shufflevector(four[0], four[1], 0, 1, 4, 5) +
                             __builtin_shufflevector(four[0], four[1], 2, 3, 6, 7);
  const FourFloats pairs23 = __builtin_shufflevector(four[2], four[3], 0, 1, 4, 5) +
                             __builtin_shufflevector(four[2], four[3], 2, 3, 6, 7);
  return __builtin_shufflevector(pairs01, pairs23, 0, 2, 4, 6) +
         __builtin_shufflevector(pairs01, pairs23, 1, 3, 5, 7);
}

}  // namespace
}  // namespace fut::cpu

#define FUT_BUILD baseline
#define FUT_BUILD_NAME "baseline"
#define FUT_WIDTH 4
#define FUT_TARGET
#include "kernels/cpu/vector_loops.inc"
#undef FUT_BUILD
#undef FUT_BUILD_NAME
#undef FUT_WIDTH
#undef FUT_TARGET

#if defined(__x86_64__)
#define FUT_BUILD avx2
#define FUT_BUILD_NAME "AVX2"
#define FUT_WIDTH 8
#define FUT_TARGET __attribute__((target("avx2")))
#include "kernels/cpu/vector_loops.inc"
#undef FUT_BUILD
#undef FUT_BUILD_NAME
#undef FUT_WIDTH
#undef FUT_TARGET

#define FUT_BUILD avx512
#define FUT_BUILD_NAME "AVX-512"
#define FUT_WIDTH 16
#define FUT_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#include "kernels/cpu/vector_loops.inc"
#endif

namespace fut::cpu {

std::vector<const VectorLoops*> usable_vector_loops() {
  std::vector<const VectorLoops*> loops = {&baseline::kLoops};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) loops.push_back(&avx2::kLoops);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    loops.push_back(&avx512::kLoops);
  }
#endif
  return loops;
}

}  // namespace fut::cpu
