// The rotation of keys and queries: a block-diagonal Hadamard matrix, applied in float32 by one fixed
// sequence of operations. Symmetric and orthogonal, so the product of a rotated query and a rotated
// key is that of the unrotated ones. Not the rotation of weights: loader/hadamard.h.
#pragma once

#include <cmath>
#include <cstdint>

namespace fut {

[[nodiscard]] constexpr bool is_rotation_block(int block, int head_dim) {
  return block >= 2 && (block & (block - 1)) == 0 && head_dim % block == 0;
}

// Each `block` numbers of `values` (a power of two of them) are replaced by their product with
// Sylvester's matrix over sqrt(block): butterflies (a + b, a - b) at distances 1, 2, 4, ...,
// block / 2, then one product each with the float32 nearest to 1 / sqrt(block).
inline void hadamard_blocks(float* values, std::int64_t count, int block) {
  const float norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
  for (std::int64_t first = 0; first < count; first += block) {
    float* v = values + first;
    for (int distance = 1; distance < block; distance *= 2) {
      for (int i = 0; i < block; ++i) {
        if ((i & distance) != 0) continue;
        const float a = v[i];
        const float b = v[i + distance];
        v[i] = a + b;
        v[i + distance] = a - b;
      }
    }
    for (int i = 0; i < block; ++i) v[i] *= norm;
  }
}

}  // namespace fut
