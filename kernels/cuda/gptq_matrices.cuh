// What GPTQ does to matrices element by element: moments made whole, a Hessian brought into the order of the
// sweep, factors turned round, rows gathered, corrected, coded. The same operations as loader/gptq.cpp and
// loader/gptq_target.cpp have.
#pragma once

#include <cstdint>

#include "kernels/numeric/int4_code.h"
#include "kernels/ops_gptq.h"

namespace fut::cuda {

// ---- square matrices ------------------------------------------------------------------------------

__device__ inline bool is_finite(double value) {
  return value - value == 0;
}

// Elements (i, j) and (j, i), j <= i.
__device__ inline void finish_moment(const FinishMomentsArgs& a, std::int64_t i, std::int64_t j) {
  const double value = a.h[i * a.n + j];
  a.h[j * a.n + i] = value;
  if (a.g != nullptr) {
    a.g[i * a.n + j] = __dsub_rn(a.g[i * a.n + j], value);
    if (i != j) a.g[j * a.n + i] = __dsub_rn(a.g[j * a.n + i], value);
  }
  if (i == j) a.diagonal[i] = value;
  if (!is_finite(value) || (i == j && value < 0)) {
    atomicMin(reinterpret_cast<unsigned long long*>(a.first_bad),
              static_cast<unsigned long long>(i * a.n + j));
  }
}

// Element (i, j) of the matrix whose lower factor is wanted: in the order of the sweep from its end.
__device__ inline double reversed_hessian(const InverseFactorArgs& a, std::int64_t i,
                                          std::int64_t j) {
  const std::int64_t row = a.order[a.n - 1 - i], col = a.order[a.n - 1 - j];
  const double value = a.h[row * a.n + col];
  if (i != j) return value;
  return __dadd_rn(value == 0 ? 1.0 : value, a.ridge);
}

// Element `index` of the first half of m[n, n], which is lower triangular, and its counterpart from the end
// change places: the upper triangular matrix of reversed rows and columns. What lies above the diagonal is
// not looked at.
__device__ inline void turn_round(double* m, std::int64_t n, std::int64_t index) {
  const std::int64_t other = n * n - 1 - index;
  const std::int64_t row = index / n, col = index % n;
  const double first = m[index], last = m[other];
  m[index] = col >= row ? last : 0.0;
  m[other] = col <= row ? first : 0.0;
}

// ---- rows -----------------------------------------------------------------------------------------

__device__ inline void gather_column(const GatherColumnsArgs& a, std::int64_t row, std::int64_t j) {
  const std::int64_t from = row * a.cols + (a.order == nullptr ? j : a.order[j]);
  a.out[row * a.cols + j] = a.wide == nullptr ? a.narrow[from] : a.wide[from];
}

__device__ inline void correct_column(const CorrectRowsArgs& a, std::int64_t row, std::int64_t j) {
  const std::int64_t col = a.order[j];
  float value = a.w[row * a.cols + col];
  if (a.correction != nullptr) {
    value =
        static_cast<float>(__dadd_rn(value, __dmul_rn(a.share, a.correction[row * a.cols + j])));
  }
  a.target[row * a.cols + col] = a.diagonal[col] == 0 ? 0.0F : value;
}

__device__ inline float dequantised(const Int4Rows& q, std::int64_t row, std::int64_t col) {
  const Int4Scale scale{q.scales[row * (q.cols / q.group_size) + col / q.group_size]};
  return decode_int4(q.codes[row * q.cols + col], scale);
}

__device__ inline double residual_at(const ResidualsArgs& a, std::int64_t row, std::int64_t col) {
  return __dsub_rn(static_cast<double>(a.w[row * a.q.cols + col]),
                   static_cast<double>(dequantised(a.q, row, col)));
}

// Column `col` of a row, and where a group begins its scale.
__device__ inline void keep_better_column(const KeepBetterArgs& a, std::int64_t row,
                                          std::int64_t col) {
  if (a.losses[row] < a.rounded_losses[row]) return;
  a.q.codes[row * a.q.cols + col] = a.rounded.codes[row * a.q.cols + col];
  if (col % a.q.group_size != 0) return;
  const std::int64_t group = (row * a.q.cols + col) / a.q.group_size;
  a.q.scales[group] = a.rounded.scales[group];
}

}  // namespace fut::cuda
