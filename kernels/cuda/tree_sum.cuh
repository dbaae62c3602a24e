// Sums as a balanced binary tree, the order of everything that is merged from parts.
#pragma once

namespace fut::cuda {

// v[0] + ... + v[kCount - 1], the stride in floats.
template <int kCount>
__device__ __forceinline__ float tree_sum(const float* values, int stride) {
  if constexpr (kCount == 1) {
    return values[0];
  } else {
    return tree_sum<kCount / 2>(values, stride) +
           tree_sum<kCount / 2>(values + kCount / 2 * stride, stride);
  }
}

// The same where the count, 1 to 16, is known at run time only.
__device__ __forceinline__ float tree_sum(const float* values, int count, int stride) {
  switch (count) {
    case 1:
      return values[0];
    case 2:
      return tree_sum<2>(values, stride);
    case 4:
      return tree_sum<4>(values, stride);
    case 8:
      return tree_sum<8>(values, stride);
    default:
      return tree_sum<16>(values, stride);
  }
}

}  // namespace fut::cuda
