// What GPTQ should aim at when its inputs are not what they were: a least-squares correction of the
// weights, through the factor that the sweep needs anyway.
#include <algorithm>

#include "loader/gptq.h"

namespace fut {
namespace {

constexpr std::int64_t kSlabRows = 64;

SquareMatrix transposed(const SquareMatrix& m, const ParallelFor& parallel_for) {
  SquareMatrix out(m.size);
  run_parallel(parallel_for, m.size, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t j = 0; j < m.size; ++j) out.row(i)[j] = m.row(j)[i];
    }
  });
  return out;
}

// A slab of rows in float64.
struct Slab {
  std::vector<double> values;
  std::int64_t rows = 0, cols = 0;

  Slab(std::int64_t num_rows, std::int64_t num_cols)
      : values(static_cast<std::size_t>(num_rows * num_cols)), rows(num_rows), cols(num_cols) {}
  [[nodiscard]] double* row(std::int64_t r) { return values.data() + r * cols; }
  [[nodiscard]] Slab times(const SquareMatrix& m) const {
    Slab out(rows, cols);
    add_product({out.values.data(), rows, cols, cols}, {values.data(), rows, cols, cols},
                {m.values.data(), cols, cols, cols});
    return out;
  }
};

}  // namespace

HostMatrix upstream_target(const HostMatrix& w, const SquareMatrix& g, const GptqFactor& factor,
                           double share, const ParallelFor& parallel_for) {
  FUT_CHECK(g.size == w.cols && std::ssize(factor.order) == w.cols,
            "{} products and an order of {} for the {} columns of {}", g.size, factor.order.size(),
            w.cols, w.name);
  HostMatrix target = w;
  if (!factor.usable) return target;
  const SquareMatrix lower = transposed(factor.upper, parallel_for);
  const std::int64_t num_slabs = (w.rows + kSlabRows - 1) / kSlabRows;
  run_parallel(parallel_for, num_slabs, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin * kSlabRows; first < std::min(end * kSlabRows, w.rows);
         first += kSlabRows) {
      const std::int64_t rows = std::min(kSlabRows, w.rows - first);
      Slab weights(rows, w.cols);
      std::copy(w.row(first), w.row(first + rows), weights.values.begin());
      Slab products = weights.times(g);
      Slab permuted(rows, w.cols);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t j = 0; j < w.cols; ++j) {
          permuted.row(r)[j] = products.row(r)[factor.order[static_cast<std::size_t>(j)]];
        }
      }
      // H^-1 = U^T U
      Slab correction = permuted.times(lower).times(factor.upper);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t j = 0; j < w.cols; ++j) {
          const std::int64_t col = factor.order[static_cast<std::size_t>(j)];
          target.row(first + r)[col] =
              static_cast<float>(weights.row(r)[col] + share * correction.row(r)[j]);
        }
      }
    }
  });
  return target;
}

}  // namespace fut
