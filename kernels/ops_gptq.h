// The contract of what GPTQ asks of a device beside ops_offline.h: moments of inputs, the factor of a
// Hessian, products in float64, and what is done to rows of codes a block of columns at a time. The
// reference is loader/{gptq,gptq_target,dense_linear}.cpp. Ops on rows follow it bit for bit: no
// product is fused with a sum, sums have its order. Products of matrices and the factor are the
// device's libraries': sums in their order, the same on each run.
// Pointers are backend memory; matrices lie row-major without gaps unless a view says otherwise, square
// ones are [n, n], rows of weights [rows, cols] with cols a multiple of kGptqBlockColumns.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/tensor.h"

namespace fut {

// Columns that are swept or descended together before all others hear of it.
inline constexpr int kGptqBlockColumns = 128;

// add_token_products: sums[i, j] = sum over t of left[t, i] * right[t, j]; added to it where `adds`
// types     left and right BF16, [tokens, n]
// rounding  the sum of one call in float32, then one addition in float64
// partial   [n, n], overwritten
struct TokenProductsArgs {
  ConstActivationView left, right;
  bool adds = true;
  double* sums = nullptr;
  float* partial = nullptr;
};
void check(const TokenProductsArgs& a);

// finish_moments: h (sums of x x^T, its lower triangle counts) becomes symmetric, g (sums of x0 x^T, or
// null) becomes sums of (x0 - x) x^T, diagonal[i] = h[i, i]
// faults    first_bad [1]: becomes the least of what it was and of all i * n + j, j <= i, where h is not
//           finite or has a negative diagonal
struct FinishMomentsArgs {
  std::int64_t n = 0;
  double* h = nullptr;
  double* g = nullptr;
  double* diagonal = nullptr;
  std::uint64_t* first_bad = nullptr;
};
void check(const FinishMomentsArgs& a);

// inverse_factor: upper triangular U, U^T U the inverse of h[order, order] with `ridge` on its diagonal;
// a diagonal of zero counts as one
// faults    failed [1]: 0, or another number where that matrix is not positive definite; upper is
//           undefined then
struct InverseFactorArgs {
  std::int64_t n = 0;
  const double* h = nullptr;
  const std::int32_t* order = nullptr;
  double ridge = 0;
  double* upper = nullptr;
  std::int32_t* failed = nullptr;
};
void check(const InverseFactorArgs& a);

// add_product: C = A B, or A B^T; added to C where `adds`
struct AddProductArgs {
  MatrixView<double> c;
  MatrixView<const double> a, b;
  bool b_transposed = false;
  bool adds = true;
};
void check(const AddProductArgs& a);

// gather_columns: out[r, j] = narrow[r, order[j]] or wide[r, order[j]], whichever is not null; without
// an order all columns as they are
struct GatherColumnsArgs {
  std::int64_t rows = 0, cols = 0;
  const float* narrow = nullptr;
  const double* wide = nullptr;
  const std::int32_t* order = nullptr;
  double* out = nullptr;
};
void check(const GatherColumnsArgs& a);

// correct_rows: target[r, c] = w[r, c] + share * correction[r, j], c = order[j], rounded once; without a
// correction w itself; 0 where diagonal[c] is
struct CorrectRowsArgs {
  std::int64_t rows = 0, cols = 0;
  const float* w = nullptr;
  const double* correction = nullptr;
  double share = 0;
  const std::int32_t* order = nullptr;
  const double* diagonal = nullptr;
  float* target = nullptr;
};
void check(const CorrectRowsArgs& a);

// Codes and scales of rows of weights, as round_to_int4 writes them.
struct Int4Rows {
  std::int64_t rows = 0, cols = 0;
  int group_size = 128;
  std::int8_t* codes = nullptr;
  std::uint16_t* scales = nullptr;
};

// residuals: out = w - codes * scales
struct ResidualsArgs {
  Int4Rows q;
  const float* w = nullptr;
  double* out = nullptr;
};
void check(const ResidualsArgs& a);

// row_dots: out[r] = sum over c, ascending, of a[r, c] * b[r, c]
struct RowDotsArgs {
  std::int64_t rows = 0, cols = 0;
  const double* a = nullptr;
  const double* b = nullptr;
  double* out = nullptr;
};
void check(const RowDotsArgs& a);

// sweep_block: codes of columns order[begin .. begin + 128), one after the other, the error of each moved
// to those after it in the block. weights are permuted, [rows, cols], and read; negated [rows, 128] is
// what all later columns are to have added, times their rows of `upper`
// bound     latency: 128 steps of two divisions each
struct SweepBlockArgs {
  Int4Rows q;
  std::int64_t begin = 0;
  const double* weights = nullptr;
  const double* upper = nullptr;
  const std::int32_t* order = nullptr;
  double* negated = nullptr;
};
void check(const SweepBlockArgs& a);

// descend_block: each code of columns [begin, begin + 128) in turn, or each scale, to its optimum given
// all others, where that lowers the loss with `ridge`. product is residual * h as it is before the block,
// and read; negated [rows, 128] times the block's rows of h is what it is to have added
// bound     latency: 128 steps of a division each
struct DescendBlockArgs {
  Int4Rows q;
  std::int64_t begin = 0;
  bool fits_scales = false;
  const double* h = nullptr;
  double ridge = 0;
  double* residual = nullptr;
  const double* product = nullptr;
  double* negated = nullptr;
};
void check(const DescendBlockArgs& a);

// keep_better: row r of q becomes that of `rounded` unless losses[r] < rounded_losses[r]
struct KeepBetterArgs {
  Int4Rows q, rounded;
  const double* losses = nullptr;
  const double* rounded_losses = nullptr;
};
void check(const KeepBetterArgs& a);

// dequantise: out = BF16(codes * scales)
struct DequantiseArgs {
  Int4Rows q;
  std::uint16_t* out = nullptr;
};
void check(const DequantiseArgs& a);

// Ops return before they are done, in the order of the backend's other ops.
class GptqOps {
 public:
  virtual ~GptqOps() = default;
  // What sums of products depend on, in a line: device, libraries, versions.
  [[nodiscard]] virtual std::string made_by() const = 0;
  virtual void add_token_products(const TokenProductsArgs& a) = 0;
  virtual void finish_moments(const FinishMomentsArgs& a) = 0;
  virtual void inverse_factor(const InverseFactorArgs& a) = 0;
  virtual void add_product(const AddProductArgs& a) = 0;
  virtual void gather_columns(const GatherColumnsArgs& a) = 0;
  virtual void correct_rows(const CorrectRowsArgs& a) = 0;
  virtual void residuals(const ResidualsArgs& a) = 0;
  virtual void row_dots(const RowDotsArgs& a) = 0;
  virtual void sweep_block(const SweepBlockArgs& a) = 0;
  virtual void descend_block(const DescendBlockArgs& a) = 0;
  virtual void keep_better(const KeepBetterArgs& a) = 0;
  virtual void dequantise(const DequantiseArgs& a) = 0;
};

}  // namespace fut
