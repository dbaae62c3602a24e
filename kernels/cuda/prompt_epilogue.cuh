// What epilogues of the prompt products share: a thread's sums eight at a time, times their scales, and
// stores of eight neighbouring numbers.
#pragma once

#include <cstdint>

#include "kernels/cuda/prompt_gemm.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/numeric/formats.h"

namespace fut::cuda {

// Eight outputs of a thread, in a block of 32 rows of a part.
struct PromptEight {
  int part_begin = 0, part_rows = 0;
  int first = 0;  // row of the part where the block of 32 begins
  bool spread = false;

  __device__ PromptEight(const PromptGemmArgs& args, int part, int first_row)
      : part_begin(args.part_begin[part]),
        part_rows(args.part_rows[part]),
        first(first_row),
        spread(args.spread) {}

  // Row of the part of number i; in spread order row(0) and the next seven.
  [[nodiscard]] __device__ __forceinline__ int row(int i) const {
    return first + layout::prompt_output(spread, static_cast<int>(threadIdx.x) % 32, i);
  }
  // Whether there are any outputs.
  [[nodiscard]] __device__ __forceinline__ bool is_there() const { return first < part_rows; }
};

// What the sums of eight rows are multiplied by; float32 row scales lie at a multiple of 16 bytes where
// rows are in spread order.
template <class Format>
struct PromptScales {
  float values[8];

  __device__ __forceinline__ PromptScales(const PromptGemmArgs& args, const PromptEight& at) {
    if constexpr (!Format::kHasScales) return;
    const float* scales = args.row_scales + at.part_begin;
    if (at.spread) {
      const auto* fours = reinterpret_cast<const float4*>(scales + at.row(0));
      const float4 a = __ldg(fours);
      const float4 b = __ldg(fours + 1);
      const float all[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = all[i] * args.scale_factor;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        values[i] = at.row(i) < at.part_rows ? __ldg(scales + at.row(i)) * args.scale_factor : 0.0F;
      }
    }
  }

  // The results of block `block` for the token of `half`.
  template <int kCount>
  __device__ __forceinline__ void take(float (&v)[8], const float (&sums)[kCount], int block,
                                       int half) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float sum = sums[layout::prompt_register(block, half, i)];
      v[i] = Format::kHasScales ? __fmul_rn(sum, values[i]) : sum;
    }
  }
};

[[nodiscard]] __device__ __forceinline__ uint4 bf16x8(const float (&v)[8]) {
  return make_uint4(ptx::bf16x2(v[0], v[1]), ptx::bf16x2(v[2], v[3]), ptx::bf16x2(v[4], v[5]),
                    ptx::bf16x2(v[6], v[7]));
}

}  // namespace fut::cuda
