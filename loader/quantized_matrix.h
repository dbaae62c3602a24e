// Plain data of the offline mathematics: a float matrix, a quantised one, and how loops are shared
// among threads. No files, no packing: the order of elements is the logical one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "kernels/layout/int4_tile.h"
#include "kernels/numeric/int4_code.h"

namespace fut {

// Runs body(begin, end) for pieces that cover [0, count) exactly once, on as many threads as the
// caller likes, and returns when all have ended; what a body throws is thrown again. An empty one
// runs everything on the caller. No result of this folder depends on how the pieces are cut.
using ParallelFor = std::function<void(
    std::int64_t count, const std::function<void(std::int64_t begin, std::int64_t end)>& body)>;

inline void run_parallel(const ParallelFor& parallel_for, std::int64_t count,
                         const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= 0) return;
  if (parallel_for) {
    parallel_for(count, body);
  } else {
    body(0, count);
  }
}

// W[rows = outputs, cols = inputs], row-major. The name is for messages.
struct HostMatrix {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<float> values;

  HostMatrix() = default;
  HostMatrix(std::string name_for_messages, std::int64_t num_rows, std::int64_t num_cols)
      : name(std::move(name_for_messages)),
        rows(num_rows),
        cols(num_cols),
        values(static_cast<std::size_t>(num_rows * num_cols)) {}

  [[nodiscard]] float* row(std::int64_t r) { return values.data() + r * cols; }
  [[nodiscard]] const float* row(std::int64_t r) const { return values.data() + r * cols; }
};

// Element (r, c) is codes[r, c] * scales[r, c / group_size]: exact in float32, because 4 and 8
// significant bits make 12.
struct QuantizedMatrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  int group_size = 0;
  std::vector<std::int8_t> codes;     // [rows, cols], -8..7
  std::vector<std::uint16_t> scales;  // [rows, cols / group_size], signed, bits of a BF16

  QuantizedMatrix() = default;
  QuantizedMatrix(std::int64_t num_rows, std::int64_t num_cols, int columns_per_group)
      : rows(num_rows),
        cols(num_cols),
        group_size(columns_per_group),
        codes(static_cast<std::size_t>(num_rows * num_cols)),
        scales(static_cast<std::size_t>(num_rows * (num_cols / columns_per_group))) {}

  [[nodiscard]] std::int64_t groups() const { return cols / group_size; }
  [[nodiscard]] std::int8_t* row(std::int64_t r) { return codes.data() + r * cols; }
  [[nodiscard]] const std::int8_t* row(std::int64_t r) const { return codes.data() + r * cols; }
  [[nodiscard]] std::uint16_t* row_scales(std::int64_t r) { return scales.data() + r * groups(); }
  [[nodiscard]] const std::uint16_t* row_scales(std::int64_t r) const {
    return scales.data() + r * groups();
  }
};

[[nodiscard]] inline HostMatrix dequantize(const QuantizedMatrix& q) {
  HostMatrix out("dequantised", q.rows, q.cols);
  for (std::int64_t r = 0; r < q.rows; ++r) {
    for (std::int64_t c = 0; c < q.cols; ++c) {
      out.row(r)[c] = decode_int4(q.row(r)[c], {q.row_scales(r)[c / q.group_size]});
    }
  }
  return out;
}

// Throws Data, naming the matrix, before anything is computed, where the packed layout cannot hold
// it.
inline void check_quantizable(const HostMatrix& w, int group_size) {
  FUT_CHECK(group_size == 64 || group_size == 128, "group size {}", group_size);
  FUT_CHECK(std::ssize(w.values) == w.rows * w.cols, "{} holds {} values, not {} x {}", w.name,
            w.values.size(), w.rows, w.cols);
  if (w.rows <= 0 || w.cols <= 0 || w.cols % layout::Int4Tile::kColsMultiple != 0) {
    throw data_error(
        "{}: a matrix of {} x {} cannot be cut into INT4 groups of {}, its width must be a "
        "multiple of {}; run the checkpoint unquantised with --precision f32",
        w.name, w.rows, w.cols, group_size, layout::Int4Tile::kColsMultiple);
  }
}

}  // namespace fut
