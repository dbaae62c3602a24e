// RMS norm, and the rounding of what has been normalised.
#include "kernels/cpu/operands.h"

#include <cmath>

namespace fut::cpu {
namespace {

enum class Kind { WithGain, Bf16, E4m3, RawF16 };

Kind kind_of(const Weights& weights, const float* gain) {
  if (as_dense(weights) != nullptr) return gain != nullptr ? Kind::WithGain : Kind::Bf16;
  return std::holds_alternative<E4m3Matrix>(weights) ? Kind::E4m3 : Kind::RawF16;
}

// 1 / sqrt(dot(x, x) / K + eps)
float inverse_rms(const VectorLoops& loops, const float* x, std::int64_t cols, float eps) {
  float sum_of_squares = 0;
  loops.dots({x, cols, 1, DType::F32, x, cols, 1, cols, &sum_of_squares, 1});
  return 1.0F / std::sqrt(sum_of_squares / static_cast<float>(cols) + eps);
}

// Turns one row, given widened, into the operand; returns r.
float finish_row(Workers& workers, const NormedInput& input, Kind kind, float* x,
                 std::int64_t cols) {
  const float r = inverse_rms(workers.loops, x, cols, input.eps);
  switch (kind) {
    case Kind::WithGain:
      for (std::int64_t k = 0; k < cols; ++k) x[k] = (x[k] * r) * input.gain[k];
      break;
    case Kind::Bf16:
      for (std::int64_t k = 0; k < cols; ++k) x[k] = x[k] * r;
      workers.loops.round_to(DType::BF16, x, cols);
      break;
    case Kind::E4m3:
      for (std::int64_t k = 0; k < cols; ++k) x[k] = (x[k] * r) * input.operand_scale;
      add_clipped(workers.saturations.operands, workers.loops.round_to(DType::E4M3, x, cols));
      break;
    case Kind::RawF16:
      workers.loops.round_to(DType::F16, x, cols);
      break;
  }
  return r;
}

}  // namespace

Operand make_operand(Workers& workers, const NormedInput& input, const Weights& weights) {
  const Kind kind = kind_of(weights, input.gain);
  const std::int64_t cols = input.x.cols;
  float* values = workers.scratch.take(input.num_rows * cols);
  float* factors = workers.scratch.take(input.num_rows);
  workers.pool.parallel_for(
      input.num_rows, 4 * cols, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t row = input.rows == nullptr ? i : input.rows[i];
          float* x = values + i * cols;
          workers.loops.widen(input.x.dtype, row_address(input.x, row), cols, x);
          factors[i] = finish_row(workers, input, kind, x, cols);
        }
      });
  return {.x = {values, input.num_rows, cols, cols},
          .token_factors = kind == Kind::RawF16 ? factors : nullptr,
          .scale = kind == Kind::E4m3 ? input.operand_scale : 1.0F};
}

Operand plain_operand(Workers& workers, const ConstActivationView& x) {
  if (x.dtype == DType::F32) {
    return {.x = {static_cast<const float*>(x.data), x.rows, x.cols, x.row_stride}};
  }
  float* values = workers.scratch.take(x.rows * x.cols);
  workers.pool.parallel_for(x.rows, x.cols, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t m = begin; m < end; ++m) {
      workers.loops.widen(x.dtype, row_address(x, m), x.cols, values + m * x.cols);
    }
  });
  return {.x = {values, x.rows, x.cols, x.cols}};
}

}  // namespace fut::cpu
