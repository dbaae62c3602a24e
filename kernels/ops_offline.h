// The contract of what quantising asks of a device, as ops.h is of what a model asks. The reference
// is the host code of loader/ (int4_grid.h, packers.h, transforms.h), which these ops follow bit for
// bit: no product is fused with a sum, and every sum that decides or is reported has one order.
// Pointers are backend memory, matrices W[rows, cols] row-major without gaps unless a view says
// otherwise. What these ops write may be used as weights of the backend's other ops after synchronize()
// only: those may ask for weights before their turn.
#pragma once

#include <cstdint>

#include "kernels/ops_gptq.h"
#include "kernels/tensor.h"

namespace fut {

// round_to_bf16: out[i] = BF16(values[i])
// bound     bytes: 6 * count
struct RoundToBf16Args {
  const float* values = nullptr;
  std::uint16_t* out = nullptr;
  std::int64_t count = 0;
};
void check(const RoundToBf16Args& a);

// normalise: out[t] = BF16(x[t] * r), r = 1 / sqrt(mean(x[t]^2) + eps): the input of a matrix behind a
// norm whose gain is folded. x and out BF16, [M, K]
// rounding  the sum of squares and r in float32, as proj() of ops.h
struct NormaliseArgs {
  ConstActivationView x;
  float eps = 0;
  ActivationView out;
};
void check(const NormaliseArgs& a);

// column_sums: squares[c] += sum over rows of x[t, c]^2; largest[c] = max(largest[c], |x[t, c]|)
// types     x BF16
// rounding  squares are exact in float64, added to squares[c] by rising row, one rounding each
struct ColumnSumsArgs {
  ConstActivationView x;
  double* squares = nullptr;
  float* largest = nullptr;
};
void check(const ColumnSumsArgs& a);

// shift: W[r, c] *= 2^row_exponents[r] or 2^-column_exponents[c]; each array may be null
struct ShiftArgs {
  MatrixView<float> w;
  const std::int32_t* row_exponents = nullptr;
  const std::int32_t* column_exponents = nullptr;
};
void check(const ShiftArgs& a);

// round_to_int4: quantize_row of loader/int4_grid.h for every row: a scale for each group of columns,
// searched or by the largest weight, and a code for each weight
// shapes    importance [cols] or null; codes [rows, cols]; scales [rows, cols / group_size], bits of BF16
// limits    group_size 64 or 128, cols a multiple of it
// faults    first_bad [1]: becomes the least of what it was and of all r * cols + c whose weight is not
//           finite or reaches 2^127; codes and scales of such a group are undefined
// bound     arithmetic: 51 candidates for each weight
struct RoundToInt4Args {
  MatrixView<const float> w;
  const float* importance = nullptr;
  int group_size = 128;
  bool searched = true;
  std::int8_t* codes = nullptr;
  std::uint16_t* scales = nullptr;
  std::uint64_t* first_bad = nullptr;
};
void check(const RoundToInt4Args& a);

// weighted_errors: errors[r] = sum over c, ascending, of importance[c] * (w - code * scale)^2, and
// energies[r] the same of w^2; float64, products from left to right
struct WeightedErrorsArgs {
  MatrixView<const float> w;
  const float* importance = nullptr;
  int group_size = 128;
  const std::int8_t* codes = nullptr;
  const std::uint16_t* scales = nullptr;
  double* errors = nullptr;    // [rows]
  double* energies = nullptr;  // [rows]
};
void check(const WeightedErrorsArgs& a);

// pack_int4: the stream of `tile`, rows where `order` says; as pack_int4 of loader/packers.h
// bound     bytes: rows * cols * 1.5
struct PackInt4Args {
  const std::int8_t* codes = nullptr;
  const std::uint16_t* scales = nullptr;
  layout::RowOrder order;
  layout::Int4Tile tile;
  std::uint8_t* packed = nullptr;
};
void check(const PackInt4Args& a);

// pack_e4m3: codes and row scales as pack_e4m3 of loader/packers.h
// divisors  [cols / columns_per_divisor] powers of two that columns are divided by before, or null
// limits    cols a multiple of 4, columns_per_divisor too; weights are finite: caller promises
// bound     bytes: rows * cols * 5
struct PackE4m3Args {
  MatrixView<const float> w;
  const float* divisors = nullptr;
  std::int64_t columns_per_divisor = 0;
  std::uint8_t* codes = nullptr;
  float* scales = nullptr;  // [rows]
};
void check(const PackE4m3Args& a);

// What a backend offers that can quantise. Ops return before they are done, in the order of the
// backend's other ops.
class OfflineOps {
 public:
  virtual ~OfflineOps() = default;
  virtual void round_to_bf16(const RoundToBf16Args& a) = 0;
  virtual void normalise(const NormaliseArgs& a) = 0;
  virtual void column_sums(const ColumnSumsArgs& a) = 0;
  virtual void shift(const ShiftArgs& a) = 0;
  virtual void round_to_int4(const RoundToInt4Args& a) = 0;
  virtual void weighted_errors(const WeightedErrorsArgs& a) = 0;
  virtual void pack_int4(const PackInt4Args& a) = 0;
  virtual void pack_e4m3(const PackE4m3Args& a) = 0;
  // What GPTQ asks beside. The first call opens the libraries that products are left to; throws Device,
  // naming the one that cannot be used.
  [[nodiscard]] virtual GptqOps& gptq() = 0;
};

}  // namespace fut
