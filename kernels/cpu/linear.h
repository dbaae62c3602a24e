// Y = X W^T for whole matrices, shared by the matrix ops. Not an op, and not how a block of it is
// computed: block_products.h.
#pragma once

#include <span>

#include "kernels/cpu/operands.h"

namespace fut::cpu {

// Outputs n of `weight` are columns n of y.
struct Projection {
  Weights weight;
  MatrixView<float> y;
};

// Floats that project() takes from the scratch, in one piece.
[[nodiscard]] std::int64_t project_elements(const Workers& workers, const Weights& weight,
                                            std::int64_t num_tokens);

// Several projections of the same operand in one loop; all are of one kind and as wide.
void project(Workers& workers, const Operand& operand, std::span<const Projection> projections);

}  // namespace fut::cpu
