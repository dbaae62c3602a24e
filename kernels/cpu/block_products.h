// One block of Y = X W^T for each kind of weights: dense, E4M3, INT8, INT4. The block is what one
// thread computes in one go; who computes which is linear.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/operands.h"

namespace fut::cpu {

// A block is 64 tokens against 16 weight rows, which is a strip of an INT4 matrix: small enough
// that its tokens stay in the second level cache while the rows pass by, large enough that claiming
// it costs nothing.
inline constexpr std::int64_t kBlockTokens = 64;
inline constexpr std::int64_t kBlockRows = layout::Int4Tile::kStripRows;

struct Block {
  std::int64_t first_token = 0;
  std::int64_t num_tokens = 0;
  std::int64_t first_row = 0;  // of the weight as it lies in memory
  std::int64_t num_rows = 0;
};

// Rows as they lie in memory: an INT4 matrix can have filling ones among them.
[[nodiscard]] inline std::int64_t stored_rows(const Weights& weights) {
  const auto* int4 = std::get_if<Int4Matrix>(&weights);
  return int4 != nullptr ? int4->tile.rows : weight_rows(weights);
}

[[nodiscard]] constexpr std::int64_t num_blocks(std::int64_t num_tokens, std::int64_t num_rows) {
  return ((num_tokens + kBlockTokens - 1) / kBlockTokens) *
         ((num_rows + kBlockRows - 1) / kBlockRows);
}

// Block i of num_blocks(): neighbours share their tokens.
[[nodiscard]] constexpr Block block_at(std::int64_t i, std::int64_t num_tokens,
                                       std::int64_t num_rows) {
  const std::int64_t row_blocks = (num_rows + kBlockRows - 1) / kBlockRows;
  const std::int64_t first_token = i / row_blocks * kBlockTokens;
  const std::int64_t first_row = i % row_blocks * kBlockRows;
  return {first_token, std::min(kBlockTokens, num_tokens - first_token), first_row,
          std::min(kBlockRows, num_rows - first_row)};
}

// Multiply-adds of one block, for parallel_for.
[[nodiscard]] constexpr std::int64_t block_work(std::int64_t num_tokens, std::int64_t cols) {
  return std::min(kBlockTokens, num_tokens) * kBlockRows * cols;
}

// Floats that block_products() needs for itself.
[[nodiscard]] std::int64_t block_elements(const Weights& weights, std::int64_t num_tokens);

// y[m, n] for the block's tokens and outputs n, which are those that its rows hold: finished, with
// scales and factors in. `own` is memory of this thread's own, block_elements() floats.
void block_products(const VectorLoops& loops, const Operand& operand, const Weights& weights,
                    const Block& block, float* own, const MatrixView<float>& y);

}  // namespace fut::cpu
