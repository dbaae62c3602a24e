// How a product with weights that lie row after row is cut up for its number of tokens and its shape:
// how many blocks share K, and what lies where in shared memory. One table, read by launchers and by
// the kernel. Includes no CUDA header.
#pragma once

#include <climits>
#include <cstdint>
#include <optional>

#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/layout/int4_row_order.h"
#include "kernels/layout/k_segments.h"
#include "kernels/tensor.h"

namespace fut::cuda {

inline constexpr int kRowGemmThreads = 512;  // a warp for each segment of K
inline constexpr int kMaxRowTokens = 32;     // of one launch
inline constexpr int kRowChunkBytes = 64;    // of a row: 16 for each lane of a quad
inline constexpr int kRowPieceChunks = 2;    // of 16 rows, that a warp asks for at a time
inline constexpr int kRowPieceBytes = 16 * kRowPieceChunks * kRowChunkBytes;

// A matrix of one kind, or up to three that lie apart and are stacked by row number.
struct RowMatrix {
  static constexpr int kMaxParts = 3;
  const std::uint8_t* parts[kMaxParts] = {};
  int part_begin[kMaxParts] = {0, INT_MAX, INT_MAX};  // the first row of each
  const float* row_scales = nullptr;                  // null for BF16
  int rows = 0;
  int cols = 0;
  int code_bytes = 0;

  [[nodiscard]] constexpr int row_bytes() const { return cols * code_bytes; }
  [[nodiscard]] constexpr int num_chunks() const {
    return (row_bytes() + kRowChunkBytes - 1) / kRowChunkBytes;
  }
};

// Byte offsets in a block's shared memory.
struct RowGemmLayout {
  int squares = 0;       // float [segment][kMaxRowTokens]
  int ring = 0;          // [warp][stage][row][kRowPieceChunks chunks]
  int tokens = 0;        // 16-bit operands [token][columns of the block], token_stride apart
  int token_stride = 0;  // bytes, so that neighbouring tokens use other banks
  int partial = 0;       // float [strip of a round][segment of the block][16][token]
  int incoming = 0;      // float [2][own strip of a round][block][16][token]
  int bytes = 0;
};

struct RowGemmArgs {
  RowMatrix matrix;
  layout::RowOrder order;  // which two rows meet in one thread
  float scale_factor = 1;  // of row scales: a power of two, so that a division is none
  int num_strips = 0;
  int num_tokens = 0;
  int cluster = 1;                       // blocks that share K
  int segments = layout::kNumKSegments;  // of K, in a block
  int stages = 2;                        // pieces that a warp has under way, 2 or 3
  int round_strips = 1;                  // strips that a warp multiplies before sums meet
  RowGemmLayout layout;
};

struct RowGemmPlan {
  int tiles = 1;  // of 8 tokens
  int num_blocks = 0;
  RowGemmArgs args;
};

// The matrix of contracts; throws Runtime, naming op and numbers, where the kernel cannot read it.
[[nodiscard]] RowMatrix row_matrix(const char* op, const Weights& weights);
// Matrices of BF16, one below the other.
[[nodiscard]] RowMatrix row_matrix(const char* op, std::initializer_list<DenseMatrix> parts);

// The plan for 1 .. kMaxRowTokens tokens; nullopt where so many tokens of so wide a matrix fit into
// no cluster: they have to go in parts.
[[nodiscard]] std::optional<RowGemmPlan> plan_row_gemm(const RowMatrix& matrix,
                                                       const layout::RowOrder& order,
                                                       int num_tokens,
                                                       const Int4GemmMachine& machine);

// Throws: one token of this matrix fits into no cluster.
[[noreturn]] void too_wide_for_rows(const RowMatrix& matrix);

}  // namespace fut::cuda
