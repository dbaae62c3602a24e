// Encoding of tensor maps.
#include "kernels/cuda/tensor_map.h"

#include <cudaTypedefs.h>

#include "kernels/check.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/error.h"
#include "kernels/layout/prompt_tile.h"

namespace fut::cuda {
namespace {

PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
    FUT_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                    cudaEnableDefault, &status));
    if (status != cudaDriverEntryPointSuccess || found == nullptr) {
      throw runtime_failure("the NVIDIA driver has no cuTensorMapEncodeTiled: it is too old");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }();
  return function;
}

CUtensorMap encode(CUtensorMapDataType type, cuuint32_t dims, const void* data,
                   const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                   CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  constexpr cuuint32_t kSteps[] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encoder()(&map, type, dims, const_cast<void*>(data), sizes, strides, box, kSteps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw runtime_failure(
        "cuTensorMapEncodeTiled: error {} for {} dimensions, [{}, {}] innermost, rows {} bytes "
        "apart, at {}",
        static_cast<int>(result), dims, sizes[1], sizes[0], strides[0], data);
  }
  return map;
}

}  // namespace

CUtensorMap make_tensor_map(const TensorMapShape& s) {
  constexpr cuuint32_t kSpreadDims = 5;
  const auto box_cols = static_cast<cuuint32_t>(layout::kPromptRowBytes / s.element_bytes);
  const auto stride = static_cast<cuuint64_t>(s.stride_bytes);
  const auto cols = static_cast<cuuint64_t>(s.cols);
  const auto rows = static_cast<cuuint64_t>(s.rows);
  const auto box_rows = static_cast<cuuint32_t>(s.box_rows);
  // Spread: row 8t + 2j + i of block b is element (i, t, j, b), i innermost in a box.
  constexpr cuuint64_t kBlock = layout::kSpreadRows;
  const cuuint64_t sizes[2][kSpreadDims] = {{cols, rows}, {cols, 2, 4, 4, rows / kBlock}};
  const cuuint64_t strides[2][kSpreadDims - 1] = {
      {stride}, {stride, 8 * stride, 2 * stride, kBlock * stride}};
  const cuuint32_t boxes[2][kSpreadDims] = {{box_cols, box_rows},
                                            {box_cols, 2, 4, 4, box_rows / layout::kSpreadRows}};
  const int form = s.spread ? 1 : 0;
  return encode(
      s.element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      s.spread ? kSpreadDims : 2, s.data, sizes[form], strides[form], boxes[form]);
}

CUtensorMap make_heads_map(const HeadsMapShape& s) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(s.head_dim), static_cast<cuuint64_t>(s.heads),
                              static_cast<cuuint64_t>(s.tokens)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(2 * s.head_dim),
                                static_cast<cuuint64_t>(s.stride_bytes)};
  const cuuint32_t box[] = {layout::kPromptRowBytes / 2, static_cast<cuuint32_t>(s.box_heads),
                            static_cast<cuuint32_t>(s.box_tokens)};
  return encode(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, s.data, sizes, strides, box);
}

CUtensorMap make_tensor_map(const TensorBoxes& b) {
  return encode(b.type, static_cast<cuuint32_t>(b.sizes.size()), b.data, b.sizes.data(),
                b.strides.data(), b.box.data(), b.swizzle);
}

}  // namespace fut::cuda
