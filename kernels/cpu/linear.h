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

// proj() of ops.h: the outputs of all `parts` (of one kind and as wide) side by side, a row for each
// of input.num_rows, in the scratch, which holds nothing else then.
[[nodiscard]] MatrixView<float> project_normed(Workers& workers, const NormedInput& input,
                                               std::span<const Weights> parts);

}  // namespace fut::cpu
