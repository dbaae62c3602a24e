// What a norm over a row needs of its squares.
#pragma once

namespace fut::cuda {

// 1 / rms of a row with this sum of squares.
__device__ __forceinline__ float inverse_rms(float squares, int cols, float eps) {
  return 1.0F / sqrtf(squares / static_cast<float>(cols) + eps);
}

__device__ __forceinline__ float sum_of_lanes(float sum) {
#pragma unroll
  for (int distance = 16; distance >= 1; distance /= 2) {
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
  }
  return sum;
}

}  // namespace fut::cuda
