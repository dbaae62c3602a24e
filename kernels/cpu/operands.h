// The left side of a matrix product as the contract's proj() has it: rows of x, normalised or not,
// rounded to the type that the weights want and held in float32. Not the product: linear.h.
#pragma once

#include <cstdint>

#include "kernels/cpu/cpu_ops.h"

namespace fut::cpu {

struct Operand {
  MatrixView<const float> x;
  const float* token_factors = nullptr;  // INT4 and INT8: [x.rows], or null for factors of 1
  float scale = 1;                       // E4M3: what x was multiplied by before it was rounded

  [[nodiscard]] float factor(std::int64_t token) const {
    return token_factors == nullptr ? 1.0F : token_factors[token];
  }
};

// A product with normalised inputs, before its weights are looked at.
struct NormedInput {
  ConstActivationView x;
  const std::int32_t* rows = nullptr;  // which rows of x; null: all of them, in order
  std::int64_t num_rows = 0;
  const float* gain = nullptr;
  float eps = 0;
  float operand_scale = 1;
};

// What `make_operand` takes from the scratch: floats, in kOperandPieces pieces.
inline constexpr std::int64_t kOperandPieces = 2;
[[nodiscard]] constexpr std::int64_t operand_elements(std::int64_t rows, std::int64_t cols) {
  return rows * cols + rows;
}

// The operand that goes with `weights` (ops.h): (x * r) * gain for a dense matrix with a gain,
// BF16(x * r) for one without, E4M3((x * r) * scale) for E4M3 weights, F16(x) with r as the factor
// for integer codes.
[[nodiscard]] Operand make_operand(Workers& workers, const NormedInput& input,
                                   const Weights& weights);

// Rows as they are, widened. F32 stays where it is; else x.rows * x.cols floats in one piece.
[[nodiscard]] Operand plain_operand(Workers& workers, const ConstActivationView& x);

}  // namespace fut::cpu
