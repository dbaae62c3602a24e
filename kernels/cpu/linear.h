// What the four matrix ops share: RMS norm of rows, and dot products block by block. Not an op.
#pragma once

#include <algorithm>
#include <span>

#include "kernels/cpu/cpu_ops.h"

namespace fut::cpu {

// A block is 64 tokens against 16 weight rows: small enough that its tokens stay in the second
// level cache while the rows pass by, large enough that claiming it costs nothing.
inline constexpr std::int64_t kBlockTokens = 64;
inline constexpr std::int64_t kBlockRows = 16;

// The part of Y = X W^T that is computed in one go.
struct Block {
  std::int64_t first_token = 0;
  std::int64_t num_tokens = 0;
  std::int64_t first_row = 0;  // of the weight, which is a column of Y
  std::int64_t num_rows = 0;
};

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

// out[m * out_stride + n] = dot(x[first_token + m], weight[first_row + n]). `widened` is memory of
// this thread's own, kBlockRows * weight.cols floats.
void block_dots(const VectorLoops& loops, MatrixView<const float> x, const WeightMatrix& weight,
                const Block& block, float* widened, float* out, std::int64_t out_stride);

// y = x W^T
struct Projection {
  WeightMatrix weight;
  MatrixView<float> y;
};

// Several projections of the same x in one loop. `widened` is num_threads * kBlockRows * x.cols
// floats.
void project(Workers& workers, MatrixView<const float> x, std::span<const Projection> projections,
             float* widened);

// out[i] = (x[rows[i]] / rms) * gain; rows == nullptr: all rows in order. `out` has as many rows as
// are wanted.
void rms_norm(Workers& workers, MatrixView<const float> x, const std::int32_t* rows,
              const float* gain, float eps, MatrixView<float> out);

}  // namespace fut::cpu
