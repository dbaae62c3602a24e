// proj() of ops.h with INT8 weights for 9 to 32 tokens, results in float32. See the header.
// launch  tokens as operands, a block each, then the product (row_tile_gemm.cuh), a block of 640 threads a
//         multiprocessor in clusters of two. Dependent launches.
// bound   memory: bytes of the matrix
#include "kernels/cuda/head_project.h"
#include "kernels/cuda/row_store.cuh"
#include "kernels/cuda/row_tile_gemm_launch.cuh"

namespace fut::cuda {

bool has_head_project(const RowProjection& p, const LaunchContext& context) {
  return p.is_int8 && takes_row_tiles(p.matrix, p.count, context);
}

void head_project(const RowProjection& p, LaunchContext& context) {
  RowTokens tokens = row_tokens(p.x, p.rows == nullptr ? p.first : 0);
  tokens.rows = p.rows == nullptr ? nullptr : p.rows + p.first;
  tokens.eps = p.eps;
  launch_row_tiles<Int8Rows, RowNorm::OnResult, false>(
      p.op, p.matrix, layout::RowOrder::natural(p.matrix.rows), 1.0F, tokens,
      static_cast<int>(p.count), RowStore{p.out.data, p.out.row_stride}, context);
}

}  // namespace fut::cuda
