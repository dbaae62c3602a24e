// GPTQ (Frantar, Ashkboos, Hoefler, Alistarh, 2022): codes chosen column by column, the error of
// each pushed onto the columns still to come as the Hessian of the inputs says. The Hessian is an
// argument: nothing here runs a model. Scales and codes come from int4_grid.h, as those of
// round-to-nearest do.
//
// Minimised is tr((W - Q) H (W - Q)^T), H = sum over tokens of x x^T. Rows are independent.
// float64 throughout.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "loader/dense_linear.h"
#include "loader/quantized_matrix.h"

namespace fut {

struct GptqOptions {
  int group_size = 128;
  double damping = 0.01;  // added to the diagonal, as a fraction of its mean
  bool act_order = true;  // columns by falling diagonal, equals by index; scales stay in place
  // Columns whose updates of the rest are applied together. Changes the time, not one bit.
  int block_columns = 128;
  // Rounds of coordinate descent on the swept codes: each code to its optimum given the others,
  // then each scale. One round takes 3 % off the loss of inputs never seen (15 % without act_order)
  // and doubles the time; a second one takes another 0.5 %.
  int descent_rounds = 1;
  // How much of the difference between the inputs that a matrix was made for and those that the
  // quantised matrices before it give is made up for; see upstream_target. 0: none. On a small
  // model one half takes 4 to 8 % off the divergence on text never seen with 16,384 tokens of
  // calibration, 16 % with 65,536. All of it was worse than none in the one run made (16,384).
  double upstream_share = 0.5;
};

// What matrices that read the same input (q, k and v; gate and up) share.
struct GptqFactor {
  std::vector<std::int64_t> order;         // order[j] is the column that is swept j-th
  SquareMatrix upper;                      // U of the permuted, damped H: H^-1 = U^T U
  std::vector<std::int64_t> dead_columns;  // inputs that were never anything but zero
  double damping = 0;                      // the fraction that was added in the end
  int damping_raises = 0;  // how often it had to be multiplied by 10 before H could be factored
  bool usable = true;      // false: not even then; matrices are rounded to nearest
};

// What the diagonal of H alone tells: order, dead columns, the first damping. No factor yet. Throws Data,
// naming the input, where all of it is zero.
[[nodiscard]] GptqFactor start_factor(const std::string& input_name,
                                      std::span<const double> diagonal, const GptqOptions& options);
[[nodiscard]] double mean_of(std::span<const double> diagonal);
// What rounding to nearest weighs columns with: the diagonal over its mean.
[[nodiscard]] std::vector<float> column_importance(std::span<const double> diagonal);
// More damping after a factor that was not found. False: enough was tried, it is not usable.
[[nodiscard]] bool raise_damping(GptqFactor& factor);
// What factor_hessian throws of an element that no activations give.
[[noreturn]] void throw_bad_hessian(const std::string& input_name, std::int64_t i, std::int64_t j,
                                    double value);

// h: both triangles. Throws Data, naming the input, where H is not finite, has a negative diagonal
// or is zero altogether. Takes n^2 doubles beside h.
[[nodiscard]] GptqFactor factor_hessian(const std::string& input_name, const SquareMatrix& h,
                                        const GptqOptions& options,
                                        const ParallelFor& parallel_for);

// The weights to quantise in the place of `w`: with x what the matrix sees, x0 what it was made for
// and g the sum over tokens of (x0 - x) x^T, W + share * W g H^-1 (H with the damping of its
// factor), which for share 1 brings W* x as near to W x0 as one matrix can. `w` itself where the
// factor is not usable. Rounded once to float32.
[[nodiscard]] HostMatrix upstream_target(const HostMatrix& w, const SquareMatrix& g,
                                         const GptqFactor& factor, double share,
                                         const ParallelFor& parallel_for);

struct GptqReport {
  double loss = 0;      // tr((W - Q) H (W - Q)^T) of the result
  double rtn_loss = 0;  // the same of round-to-nearest on the same grid; loss is never above it
  double output_energy = 0;  // tr(W H W^T)
  double swept_loss = 0;     // of the column sweep alone, with the damped H: sum of squared errors
  std::int64_t rows_rounded = 0;  // rows that round-to-nearest served better, and now serves
};

struct GptqResult {
  QuantizedMatrix matrix;
  GptqReport report;
};

// `factor` is factor_hessian of the same h and options. Weights of dead columns are taken as zero.
// Throws Data as check_quantizable and quantize_row.
[[nodiscard]] GptqResult quantize_gptq(const HostMatrix& w, const SquareMatrix& h,
                                       const GptqFactor& factor, const GptqOptions& options,
                                       const ParallelFor& parallel_for);

}  // namespace fut
