// One token of a batch rounded for an INT4 projection, by a block that has a warp for each segment of K.
#pragma once

#include <cstdint>

#include "kernels/cuda/int4_normed_operand.cuh"
#include "kernels/cuda/rms.cuh"
#include "kernels/cuda/tree_sum.cuh"
#include "kernels/layout/k_segments.h"

namespace fut::cuda {

// segment_squares: kNumKSegments floats of the block's shared memory; out: rows of all groups, one behind
// the other.
__device__ __forceinline__ void prepare_int4_token(const NormedOperand& operand, std::uint16_t* out,
                                                   float* factors, int num_groups, int group,
                                                   float* segment_squares) {
  const auto token = static_cast<int>(blockIdx.x);
  const auto segment = static_cast<int>(threadIdx.x) / 32;
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  const int begin = layout::k_segment_begin(segment, num_groups) * group;
  const int end = layout::k_segment_begin(segment + 1, num_groups) * group;
  std::uint16_t* row = out + static_cast<std::int64_t>(token) * num_groups * group;
  float squares = 0;
#pragma unroll 4
  for (int k = begin + 4 * lane; k < end; k += 128) {
    *reinterpret_cast<uint2*>(row + k) = operand.load(token, k, squares);
  }
  squares = sum_of_lanes(squares);
  if (lane == 0) segment_squares[segment] = squares;
  __syncthreads();
  if (threadIdx.x == 0) {
    factors[token] = inverse_rms(tree_sum<layout::kNumKSegments>(segment_squares, 1),
                                 num_groups * group, operand.eps);
  }
}

}  // namespace fut::cuda
