// What a lane reads of a record of INT4 weights (layout/int4_tile.h) that lies in shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/layout/int4_tile.h"

namespace fut::cuda {

// The codes of 64 columns, block `block` of the record: a word for each 16 of them.
__device__ __forceinline__ uint4 load_codes(std::uint32_t record, int block) {
  return ptx::load_shared_16(record + block * layout::Int4Tile::kBlockBytes +
                             threadIdx.x % 32 * 16);
}

// The scales of rows g and g + 8.
template <int kRecordBytes>
__device__ __forceinline__ float2 load_scales(std::uint32_t record) {
  const std::uint32_t scales =
      record + kRecordBytes - layout::Int4Tile::kScaleBytes + threadIdx.x % 32 / 4 * 2;
  return make_float2(ptx::load_shared_bf16(scales), ptx::load_shared_bf16(scales + 16));
}

}  // namespace fut::cuda
