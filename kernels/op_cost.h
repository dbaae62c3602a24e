// How much each op must move and compute at least: every operand crosses memory once. Benchmarks
// divide by these numbers and carry no formula of their own.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace fut {

struct OpCost {
  std::int64_t bytes = 0;  // read and written
  std::int64_t flops = 0;  // a multiply-add counts as two; exponentials and norms are left out
};

// Codes and scales of a matrix, as they lie in memory.
[[nodiscard]] std::int64_t weight_bytes(const Weights& weights);
[[nodiscard]] std::int64_t weight_bytes(const QkvWeights& weights);
[[nodiscard]] std::int64_t weight_bytes(const GateUpWeights& weights);

[[nodiscard]] OpCost cost(const EmbedArgs& a);
[[nodiscard]] OpCost cost(const QkvRopeAppendArgs& a);
// Reads positions, lengths and q_indptr: the batch must lie in host memory.
[[nodiscard]] OpCost cost(const AttentionArgs& a);
[[nodiscard]] OpCost cost(const LinearResidualArgs& a);
[[nodiscard]] OpCost cost(const GateUpSwigluArgs& a);
[[nodiscard]] OpCost cost(const LmHeadArgs& a);
[[nodiscard]] OpCost cost(const SampleArgs& a);

}  // namespace fut
