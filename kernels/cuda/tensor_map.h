// Descriptions of matrices for the tensor memory engine (cuTensorMapEncodeTiled), which kernels take as
// parameters. The driver is looked up, not linked. Pulls in CUDA headers.
#pragma once

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

}  // namespace fut::cuda
