// Views of data that somebody else owns: matrices, weights, the KV cache, the tokens of a step.
// Row-major unless a layout header says otherwise, never allocated, never copied here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <variant>

#include "kernels/layout/int4_row_order.h"
#include "kernels/layout/int4_tile.h"
#include "kernels/layout/kv_page.h"
#include "kernels/layout/kv_page_int4.h"

namespace fut {

// What numbers are held as. U8 is plain bytes of a file, never an operand.
enum class DType { F32, F16, BF16, E4M3, U8 };

[[nodiscard]] constexpr int dtype_bytes(DType t) {
  if (t == DType::F32) return 4;
  return t == DType::F16 || t == DType::BF16 ? 2 : 1;
}
[[nodiscard]] constexpr std::string_view dtype_name(DType t) {
  switch (t) {
    case DType::F32:
      return "F32";
    case DType::F16:
      return "F16";
    case DType::BF16:
      return "BF16";
    case DType::E4M3:
      return "E4M3";
    case DType::U8:
      break;
  }
  return "U8";
}

template <class T>
struct MatrixView {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;  // elements, >= cols

  [[nodiscard]] T* row(std::int64_t r) const { return data + r * row_stride; }
};

// A matrix of activations whose type is known at run time only. Elements of 16 bits are read and
// written as std::uint16_t, E4M3 as std::uint8_t. `Void` is void, or const void for what is only
// read.
template <class Void>
struct AnyMatrixView {
  Void* data = nullptr;
  DType dtype = DType::F32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;  // elements, >= cols

  AnyMatrixView() = default;
  AnyMatrixView(Void* first, DType type, std::int64_t num_rows, std::int64_t num_cols,
                std::int64_t stride)
      : data(first), dtype(type), rows(num_rows), cols(num_cols), row_stride(stride) {}
  // A view of float32; read-only where Void is const.
  template <class T, std::enable_if_t<std::is_convertible_v<T*, Void*> &&
                                          std::is_same_v<std::remove_const_t<T>, float>,
                                      int> = 0>
  AnyMatrixView(const MatrixView<T>& view)
      : AnyMatrixView(view.data, DType::F32, view.rows, view.cols, view.row_stride) {}
  // What may be written may be read.
  template <class Other,
            std::enable_if_t<std::is_const_v<Void> && !std::is_const_v<Other>, int> = 0>
  AnyMatrixView(const AnyMatrixView<Other>& other)
      : AnyMatrixView(other.data, other.dtype, other.rows, other.cols, other.row_stride) {}

  // Row r; T has the size of the type's elements.
  template <class T>
  [[nodiscard]] auto* row(std::int64_t r) const {
    using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
    return static_cast<Element*>(data) + r * row_stride;
  }
};
using ActivationView = AnyMatrixView<void>;
using ConstActivationView = AnyMatrixView<const void>;

// ---- weights: W[rows = outputs N, cols = inputs K] -----------------------------------------------

// F32, F16 or BF16, rows without gaps.
struct DenseMatrix {
  DType dtype = DType::F32;
  const void* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// W[n, k] = e4m3(codes[n, k]) * row_scales[n], rows without gaps.
struct E4m3Matrix {
  const std::uint8_t* codes = nullptr;
  const float* row_scales = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// W[n, k] = codes[n, k] * row_scales[n], codes -127 .. 127, rows without gaps.
struct Int8Matrix {
  const std::int8_t* codes = nullptr;
  const float* row_scales = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// Codes and scales as layout/int4_tile.h has them, 16-byte aligned; `order` says which output
// stands in which packed row, tile.rows == order.packed_rows(). `rows` counts outputs.
struct Int4Matrix {
  const std::uint8_t* packed = nullptr;
  layout::Int4Tile tile;
  layout::RowOrder order;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

using Weights = std::variant<DenseMatrix, E4m3Matrix, Int8Matrix, Int4Matrix>;

[[nodiscard]] inline std::int64_t weight_rows(const Weights& w) {
  return std::visit([](const auto& m) { return m.rows; }, w);
}
[[nodiscard]] inline std::int64_t weight_cols(const Weights& w) {
  return std::visit([](const auto& m) { return m.cols; }, w);
}
// The type if `w` is dense, or nullptr.
[[nodiscard]] inline const DenseMatrix* as_dense(const Weights& w) {
  return std::get_if<DenseMatrix>(&w);
}

// ---- the KV cache of one layer -------------------------------------------------------------------

// Keys and values as numbers, F32 or BF16; see layout/kv_page.h.
struct KvPages {
  void* data = nullptr;
  int num_pages = 0;
  layout::KvPageDense page;
  DType dtype = DType::F32;

  // The first element of a page; T is float or, for BF16, std::uint16_t.
  template <class T>
  [[nodiscard]] T* page_data(std::int64_t index) const {
    return static_cast<T*>(data) + index * page.elements();
  }
};

// Keys and values as 4-bit codes in pages, and for each sequence the few rows that are kept as BF16:
// the first 16 and those of the block of 16 that is not complete yet; see layout/kv_page_int4.h.
struct KvPagesInt4 {
  std::uint8_t* data = nullptr;
  int num_pages = 0;
  layout::KvPageInt4 page;
  std::uint16_t* raw = nullptr;  // [num_raw_slots][raw_rows.elements()]
  int num_raw_slots = 0;
  layout::KvRawStore raw_rows;

  [[nodiscard]] std::uint8_t* page_data(std::int64_t index) const {
    return data + index * page.bytes();
  }
  [[nodiscard]] std::uint16_t* raw_slot(std::int64_t slot) const {
    return raw + slot * raw_rows.elements();
  }
};

using KvCacheView = std::variant<KvPages, KvPagesInt4>;

// ---- the tokens of a step ------------------------------------------------------------------------

// The sequences of one step, end to end without padding. All arrays lie in the backend's memory.
// Sequence s owns tokens q_indptr[s] .. q_indptr[s+1] and pages page_table[kv_indptr[s]] ..; its
// cache holds kv_lengths[s] tokens once this step's own tokens are in. Token t of the step stands
// at positions[t]; the last token of sequence s stands at kv_lengths[s] - 1. raw_slots are looked
// at with an INT4 cache alone. With one, a page stands in the table once. longest_context, on the host, is
// no less than any of kv_lengths where it is known (0: it is not): no result depends on it, and a launch
// that was recorded with one serves any lengths.
struct RaggedBatch {
  int num_sequences = 0;
  int num_tokens = 0;
  const std::int32_t* token_ids = nullptr;   // [num_tokens]
  const std::int32_t* positions = nullptr;   // [num_tokens]
  const std::int32_t* q_indptr = nullptr;    // [num_sequences + 1]
  const std::int32_t* kv_indptr = nullptr;   // [num_sequences + 1], into page_table
  const std::int32_t* page_table = nullptr;  // [kv_indptr[num_sequences]]
  const std::int32_t* kv_lengths = nullptr;  // [num_sequences]
  const std::int32_t* raw_slots = nullptr;   // [num_sequences], into KvPagesInt4::raw
  int longest_context = 0;
};

}  // namespace fut
