// Views of data that somebody else owns. Row-major, never allocated, never copied here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/layout/kv_page.h"

namespace fut {

enum class DType { F32, F16, BF16 };

[[nodiscard]] constexpr int dtype_bytes(DType t) {
  return t == DType::F32 ? 4 : 2;
}
[[nodiscard]] constexpr std::string_view dtype_name(DType t) {
  return t == DType::F32 ? "F32" : t == DType::F16 ? "F16" : "BF16";
}

template <class T>
struct MatrixView {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;  // elements, >= cols

  [[nodiscard]] T* row(std::int64_t r) const { return data + r * row_stride; }
};

// A weight matrix W[rows = outputs N, cols = inputs K] as the checkpoint stores it, rows
// contiguous.
struct WeightMatrix {
  DType dtype = DType::F32;
  const void* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// One layer's pages of the float32 KV cache; see layout/kv_page.h for what a page holds.
struct KvPages {
  float* data = nullptr;
  int num_pages = 0;
  layout::KvPageF32 page;
};

// The sequences of one step, end to end without padding. All arrays lie in the backend's memory.
// Sequence s owns tokens q_indptr[s] .. q_indptr[s+1] and pages page_table[kv_indptr[s]] ..; its
// cache holds kv_lengths[s] tokens once this step's own tokens are in. Token t of the step stands
// at positions[t]; the last token of sequence s stands at kv_lengths[s] - 1.
struct RaggedBatch {
  int num_sequences = 0;
  int num_tokens = 0;
  const std::int32_t* token_ids = nullptr;   // [num_tokens]
  const std::int32_t* positions = nullptr;   // [num_tokens]
  const std::int32_t* q_indptr = nullptr;    // [num_sequences + 1]
  const std::int32_t* kv_indptr = nullptr;   // [num_sequences + 1], into page_table
  const std::int32_t* page_table = nullptr;  // [kv_indptr[num_sequences]]
  const std::int32_t* kv_lengths = nullptr;  // [num_sequences]
};

}  // namespace fut
