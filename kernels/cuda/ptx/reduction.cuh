// Reductions in memory, one wrapper for an instruction. PTX ISA, "red".
#pragma once

#include <cstdint>

namespace fut::cuda::ptx {

// The larger of what is there and `value`, where `wanted`. Without a branch: one that lanes take apart makes
// the compiler take what follows for code of lanes apart.
__device__ __forceinline__ void global_max_if(bool wanted, unsigned* place, unsigned value) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.b32 wanted, %0, 0;\n"
      "@wanted red.global.max.u32 [%1], %2;\n"
      "}\n" ::"r"(static_cast<int>(wanted)),
      "l"(place), "r"(value)
      : "memory");
}

}  // namespace fut::cuda::ptx
