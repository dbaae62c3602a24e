// Compiles vector_loops.inc once for each instruction set. The target attribute on each function,
// rather than flags on a whole file, keeps inline functions of the standard library from being
// compiled for an instruction set that the machine may lack. None of the sets includes fused
// multiply-add, which would round differently.
#include "kernels/cpu/vector_loops.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/cpu/dot.h"
#include "kernels/layout/int4_tile.h"
#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/formats.h"

namespace fut::cpu {
namespace {

// Column i of a weight row, for the columns that fill no register.
inline float scalar_weight(DType dtype, const void* row, std::int64_t i) {
  if (dtype == DType::F32) return static_cast<const float*>(row)[i];
  if (dtype == DType::E4M3) return e4m3_to_f32(static_cast<const std::uint8_t*>(row)[i]);
  const std::uint16_t bits = static_cast<const std::uint16_t*>(row)[i];
  return dtype == DType::BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

typedef float FourFloats __attribute__((vector_size(16)));

// What four neighbouring lanes hold of a block of 16 x 64 INT4 codes: rows g and g + 8, word 4t + i
// being lane t's of tile i.
typedef std::uint32_t LaneWords __attribute__((vector_size(64)));

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
