// Descriptions of matrices for the tensor memory engine (cuTensorMapEncodeTiled), which kernels take as
// parameters. The driver is looked up, not linked. Pulls in CUDA headers.
#pragma once

#include <array>
#include <cstdint>
#include <cuda.h>

namespace fut::cuda {

// A matrix of elements of 1 or 2 bytes in rows `stride_bytes` apart (a multiple of 16, as the first
// byte is), read in boxes of `box_rows` rows by 128 bytes in the swizzle of 128 bytes. With `spread`
// the rows of a box lie in the order of layout/prompt_tile.h, rows and box_rows multiples of 32, and
// the last coordinate counts blocks of 32.
struct TensorMapShape {
  const void* data = nullptr;
  int element_bytes = 1;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride_bytes = 0;
  int box_rows = 0;
  bool spread = false;
};
[[nodiscard]] CUtensorMap make_tensor_map(const TensorMapShape& shape);

// Any tensor of three dimensions, the innermost first and contiguous; strides in bytes, multiples of 16.
// What lies outside of it is read as zeros.
struct TensorBoxes {
  const void* data = nullptr;
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  std::array<std::uint64_t, 3> sizes{};
  std::array<std::uint64_t, 2> strides{};
  std::array<std::uint32_t, 3> box{};
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
};
[[nodiscard]] CUtensorMap make_tensor_map(const TensorBoxes& boxes);

// Heads of tokens, numbers of 2 bytes: a head is a row of `head_dim`, a token `heads` rows one behind the
// other, tokens lie `stride_bytes` apart (a multiple of 16, as the first byte is). Read in boxes of
// box_tokens by box_heads rows by 128 bytes, swizzled as above; coordinates are dim, head, token.
struct HeadsMapShape {
  const void* data = nullptr;
  std::int64_t tokens = 0;
  int heads = 0;
  int head_dim = 0;
  std::int64_t stride_bytes = 0;
  int box_tokens = 0;
  int box_heads = 0;
};
[[nodiscard]] CUtensorMap make_heads_map(const HeadsMapShape& shape);

}  // namespace fut::cuda
