// What epilogues of the prompt products share: a thread's sums eight at a time, times their scales, and
// where they belong.
#pragma once

#include <cstdint>

#include "kernels/cuda/prompt_gemm.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/numeric/formats.h"

namespace fut::cuda {

// Eight outputs of a thread for each of its two tokens: block `block` of 32 rows of a tile. In spread
// order they are neighbours, and blocks are in the matrix or not as wholes.
template <bool kSpread>
struct PromptEight {
  int block = 0;
  int part_begin = 0, part_rows = 0;
  int first = 0;  // row of the part where the block begins

  // `row`: the tile's first of the part, of which the tile's block `part_block` is the first.
  __device__ __forceinline__ PromptEight(const PromptGemmArgs& args, int part, int row, int of_tile,
                                         int part_block = 0)
      : block(of_tile),
        part_begin(args.part_begin[part]),
        part_rows(args.part_rows[part]),
        first(row + layout::kSpreadRows * (of_tile - part_block)) {}

  // Whether there are any outputs.
  [[nodiscard]] __device__ __forceinline__ bool is_there() const { return first < part_rows; }
  // Row of the part of number i.
  [[nodiscard]] __device__ __forceinline__ int row(int i) const { return first + offset(i); }
  [[nodiscard]] __device__ __forceinline__ bool has(int i) const {
    return kSpread || row(i) < part_rows;
  }

  // The results for the token of `half`.
  template <class Format, int kCount>
  __device__ __forceinline__ void take(float (&v)[8], const float (&sums)[kCount],
                                       const float* tile_scales, int half) const {
    float scales[8];
    if constexpr (Format::kHasScales) load(scales, tile_scales + layout::kSpreadRows * block);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float sum = sums[layout::prompt_register(block, half, i)];
      v[i] = Format::kHasScales ? __fmul_rn(sum, scales[i]) : sum;
    }
  }

 private:
  [[nodiscard]] __device__ __forceinline__ static int offset(int i) {
    return layout::prompt_output(kSpread, static_cast<int>(threadIdx.x) % 32, i);
  }
  __device__ __forceinline__ static void load(float (&v)[8], const float* scales) {
    if constexpr (kSpread) {
      const auto* fours = reinterpret_cast<const float4*>(scales + offset(0));
      const float4 a = fours[0];
      const float4 b = fours[1];
      v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
      v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = scales[offset(i)];
    }
  }
};

[[nodiscard]] __device__ __forceinline__ uint4 bf16x8(const float (&v)[8]) {
  return make_uint4(ptx::bf16x2(v[0], v[1]), ptx::bf16x2(v[2], v[3]), ptx::bf16x2(v[4], v[5]),
                    ptx::bf16x2(v[6], v[7]));
}

}  // namespace fut::cuda
