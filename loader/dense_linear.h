// Dense symmetric matrices in float64 on the host: what GPTQ needs of them and no more. Not a
// linear algebra library: no pivoting, no solver, no eigenvalues.
//
// Every element of every result is built by one fixed sequence of operations (products rounded,
// then added or subtracted in ascending order of the summed index), so the bits depend neither on
// the number of threads nor on the instruction set nor on how a sum is handed over in pieces.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/tensor.h"
#include "loader/quantized_matrix.h"

namespace fut {

struct SquareMatrix {
  std::int64_t size = 0;
  std::vector<double> values;  // row-major

  SquareMatrix() = default;
  explicit SquareMatrix(std::int64_t n) : size(n), values(static_cast<std::size_t>(n * n)) {}

  [[nodiscard]] double* row(std::int64_t r) { return values.data() + r * size; }
  [[nodiscard]] const double* row(std::int64_t r) const { return values.data() + r * size; }
};

[[nodiscard]] inline std::vector<double> diagonal_of(const SquareMatrix& m) {
  std::vector<double> diagonal;
  for (std::int64_t i = 0; i < m.size; ++i) diagonal.push_back(m.row(i)[i]);
  return diagonal;
}

// C[m, n] += A[m, k] B[k, n]; nothing may overlap. On the calling thread; k ascending for each
// element of C, starting from C's own value.
void add_product(MatrixView<double> c, MatrixView<const double> a, MatrixView<const double> b);

// y[i] += factor * x[i] for i < count; on the calling thread.
void add_scaled(double* y, double factor, const double* x, std::int64_t count);

// H += sum over tokens of x x^T for rows x[tokens, n]. Products of float32 values are exact in
// float64, sums are rounded. The strict upper triangle means nothing until mirror_lower, once, at
// the end.
void accumulate_hessian(SquareMatrix& h, MatrixView<const float> x,
                        const ParallelFor& parallel_for);
void mirror_lower(SquareMatrix& h);

// G += sum over tokens of left right^T for rows left[tokens, n] and right[tokens, n]: all of G.
void accumulate_products(SquareMatrix& g, MatrixView<const float> left,
                         MatrixView<const float> right, const ParallelFor& parallel_for);

// Lower Cholesky factor in place, reading the lower triangle alone; the strict upper one becomes
// zero. Returns the index of the first pivot that is not a positive number, and then leaves `a`
// in an unspecified state.
[[nodiscard]] std::optional<std::int64_t> cholesky_lower(SquareMatrix& a,
                                                         const ParallelFor& parallel_for);

// Inverse of a lower triangular matrix in place; the strict upper triangle must be zero.
void invert_lower(SquareMatrix& l, const ParallelFor& parallel_for);

// The upper triangular U with H^-1 = U^T U, in place, for a positive definite H (its inverse is
// never formed): with J the reversal of indices, J H J = L L^T gives U = J L^-1 J. About
// 2/3 n^3 operations. Returns the index of the pivot at which H proved not positive definite.
[[nodiscard]] std::optional<std::int64_t> inverse_upper_factor(SquareMatrix& h,
                                                               const ParallelFor& parallel_for);

}  // namespace fut
