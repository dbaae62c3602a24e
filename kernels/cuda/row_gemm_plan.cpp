// The choices behind plan_row_gemm, and which matrices the kernel can read.
#include "kernels/cuda/row_gemm_plan.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/error.h"

namespace fut::cuda {
namespace {

// Tokens times strips whose sums meet at a time: fewer barriers against more shared memory.
constexpr int kRoundTokens = 64;
constexpr int kMostRoundStrips = 32;

constexpr int kWarps = kRowGemmThreads / 32;

// What a block may have so that one of the next kernel fits beside it.
constexpr int kHalfSharedBytes = 113 * 1024;

int aligned(int bytes) {
  return (bytes + 127) / 128 * 128;
}

// The most chunks of columns that a block of a cluster has to hold.
int block_chunks(int num_chunks, int cluster) {
  const int segments = layout::kNumKSegments / cluster;
  int most = 0;
  for (int rank = 0; rank < cluster; ++rank) {
    most = std::max(most, layout::k_segment_begin((rank + 1) * segments, num_chunks) -
                              layout::k_segment_begin(rank * segments, num_chunks));
  }
  return most;
}

RowGemmLayout lay_out(const RowMatrix& matrix, int num_tokens, int cluster, int stages,
                      int round_strips) {
  RowGemmLayout l;
  l.ring = aligned(layout::kNumKSegments * kMaxRowTokens * 4);
  l.tokens = l.ring + kWarps * stages * kRowPieceBytes;
  const int columns =
      block_chunks(matrix.num_chunks(), cluster) * (kRowChunkBytes / matrix.code_bytes);
  // A quad reads 128 bytes of a token with codes of one byte, two tokens side by side; 64 with BF16.
  l.token_stride = aligned(2 * columns) + (matrix.code_bytes == 1 ? 16 : 64);
  l.partial = l.tokens + aligned(num_tokens * l.token_stride);
  l.incoming = l.partial + round_strips * layout::kNumKSegments * 16 * num_tokens * 4;
  l.bytes = l.incoming + (cluster == 1 ? 0 : 2 * round_strips * cluster * 16 * num_tokens * 4);
  return l;
}

int num_blocks(int cluster, const Int4GemmMachine& machine) {
  switch (cluster) {
    case 2:
      return 2 * machine.max_clusters_of_2;
    case 4:
      return 4 * machine.max_clusters_of_4;
    case 8:
      return 8 * machine.max_clusters_of_8;
    default:
      return machine.num_multiprocessors;
  }
}

// The strips of one warp's round: as many as there are, or as many as fit.
int round_strips(const RowMatrix& matrix, int num_strips, int num_tokens, int cluster, int blocks) {
  const int clusters = blocks / cluster;
  const int strips_of_cluster = (num_strips + clusters - 1) / clusters;
  const int strips_of_warp = (strips_of_cluster + cluster - 1) / cluster;
  int strips = std::min({strips_of_warp, std::max(1, kRoundTokens / num_tokens), kMostRoundStrips});
  while (strips > 1 && lay_out(matrix, num_tokens, cluster, 2, strips).bytes > kMaxSharedBytes) {
    --strips;
  }
  return strips;
}

void check_readable(const char* op, const void* data, std::int64_t rows, std::int64_t cols,
                    int code_bytes) {
  FUT_CHECK(reinterpret_cast<std::uintptr_t>(data) % 16 == 0,
            "{}: weights lie at {}; the GPU reads them 16 bytes at a time", op, data);
  FUT_CHECK(
      cols * code_bytes % 16 == 0,
      "{}: a row of weights has {} columns of {} bytes; the GPU takes a multiple of {} columns", op,
      cols, code_bytes, 16 / code_bytes);
  FUT_CHECK(cols <= INT_MAX / 16 && rows <= INT_MAX - 16, "{}: weights are [{}, {}], too many", op,
            rows, cols);
}

template <class Codes>
RowMatrix coded_matrix(const char* op, const Codes& w) {
  check_readable(op, w.codes, w.rows, w.cols, 1);
  RowMatrix matrix;
  matrix.parts[0] = reinterpret_cast<const std::uint8_t*>(w.codes);
  matrix.row_scales = w.row_scales;
  matrix.rows = static_cast<int>(w.rows);
  matrix.cols = static_cast<int>(w.cols);
  matrix.code_bytes = 1;
  return matrix;
}

}  // namespace

RowMatrix row_matrix(const char* op, std::initializer_list<DenseMatrix> parts) {
  RowMatrix matrix;
  matrix.code_bytes = 2;
  std::int64_t rows = 0;
  int index = 0;
  for (const DenseMatrix& part : parts) {
    FUT_CHECK(part.dtype == DType::BF16, "{}: dense weights of {}; the GPU takes BF16", op,
              dtype_name(part.dtype));
    check_readable(op, part.data, rows + part.rows, part.cols, 2);
    matrix.parts[index] = static_cast<const std::uint8_t*>(part.data);
    matrix.part_begin[index] = static_cast<int>(rows);
    matrix.cols = static_cast<int>(part.cols);
    rows += part.rows;
    ++index;
  }
  matrix.rows = static_cast<int>(rows);
  return matrix;
}

RowMatrix row_matrix(const char* op, const Weights& weights) {
  if (const DenseMatrix* dense = as_dense(weights)) return row_matrix(op, {*dense});
  if (const auto* e4m3 = std::get_if<E4m3Matrix>(&weights)) return coded_matrix(op, *e4m3);
  if (const auto* int8 = std::get_if<Int8Matrix>(&weights)) return coded_matrix(op, *int8);
  throw runtime_failure("{}: INT4 weights do not lie row after row", op);
}

std::optional<RowGemmPlan> plan_row_gemm(const RowMatrix& matrix, const layout::RowOrder& order,
                                         int num_tokens, const Int4GemmMachine& machine) {
  FUT_CHECK(num_tokens >= 1 && num_tokens <= kMaxRowTokens, "{} tokens in one launch, {} at most",
            num_tokens, kMaxRowTokens);
  RowGemmPlan plan;
  plan.tiles = num_tokens <= 8 ? 1 : num_tokens <= 16 ? 2 : 4;
  RowGemmArgs& args = plan.args;
  args.matrix = matrix;
  args.order = order;
  args.num_strips = (order.packed_rows() + 15) / 16;
  args.num_tokens = num_tokens;
  for (const int cluster : {1, 2, 4, 8}) {
    plan.num_blocks = num_blocks(cluster, machine);
    if (plan.num_blocks < cluster) continue;
    args.cluster = cluster;
    args.segments = layout::kNumKSegments / cluster;
    args.round_strips = round_strips(matrix, args.num_strips, num_tokens, cluster, plan.num_blocks);
    // A third piece before the wait for the kernel before, where it costs no neighbour.
    args.stages = 3;
    args.layout = lay_out(matrix, num_tokens, cluster, args.stages, args.round_strips);
    if (args.layout.bytes <= kHalfSharedBytes) return plan;
    args.stages = 2;
    args.layout = lay_out(matrix, num_tokens, cluster, args.stages, args.round_strips);
    if (args.layout.bytes <= kMaxSharedBytes) return plan;
  }
  return std::nullopt;
}

void too_wide_for_rows(const RowMatrix& matrix) {
  throw runtime_failure("one token of a matrix of {} columns fits into no cluster of the GPU",
                        matrix.cols);
}

}  // namespace fut::cuda
