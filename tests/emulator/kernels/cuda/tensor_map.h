// kernels/cuda/tensor_map.h for the emulator.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/ptx/tensor_copy.cuh"

// Of bytes.
enum CUtensorMapDataType {
  CU_TENSOR_MAP_DATA_TYPE_UINT8 = 1,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 2,
  CU_TENSOR_MAP_DATA_TYPE_INT64 = 8
};
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_128B };

namespace fut::cuda {

struct TensorBoxes {
  const void* data = nullptr;
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  std::array<std::uint64_t, 3> sizes{};
  std::array<std::uint64_t, 2> strides{};
  std::array<std::uint32_t, 3> box{};
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
};

[[nodiscard]] inline CUtensorMap make_tensor_map(const TensorBoxes& boxes) {
  CUtensorMap map;
  map.data = boxes.data;
  map.element_bytes = boxes.type;
  for (std::size_t i = 0; i < 3; ++i) {
    map.sizes[i] = static_cast<std::int64_t>(boxes.sizes[i]);
    map.box[i] = static_cast<int>(boxes.box[i]);
  }
  for (std::size_t i = 0; i < 2; ++i) map.strides[i] = static_cast<std::int64_t>(boxes.strides[i]);
  map.swizzled = boxes.swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
  return map;
}

}  // namespace fut::cuda
