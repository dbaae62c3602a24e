// proj() of ops.h with BF16, E4M3 and INT8 weights, results in float32. See the header.
// launch  the row product (row_gemm.cuh), one block a multiprocessor, dependent launch
// bound   memory: bytes of the matrix, once for each 32 tokens
#include "kernels/cuda/row_gemm_launch.cuh"
#include "kernels/cuda/row_project.h"
#include "kernels/cuda/row_store.cuh"

namespace fut::cuda {

void row_project(const RowProjection& p, LaunchContext& context) {
  const auto launch = [&](RowGemmPlan plan, std::int64_t first, int) {
    RowTokens tokens = row_tokens(p.x, p.rows == nullptr ? first : 0);
    tokens.rows = p.rows == nullptr ? nullptr : p.rows + first;
    tokens.eps = p.eps;
    set_operand_scale(p.operand_scale, plan.args, tokens);
    const RowStore epilogue{p.out.row(first - p.first), p.out.row_stride};
    if (p.matrix.code_bytes == 2) {
      launch_row_gemm<Bf16Rows, RowNorm::BeforeRounding>(p.op, plan, tokens, epilogue, context);
    } else if (p.is_int8) {
      launch_row_gemm<Int8Rows, RowNorm::OnResult>(p.op, plan, tokens, epilogue, context);
    } else {
      launch_row_gemm<E4m3Rows, RowNorm::BeforeRounding>(p.op, plan, tokens, epilogue, context);
    }
  };
  for_each_slice(p.matrix, layout::RowOrder::natural(p.matrix.rows), context.machine(), p.first,
                 p.count, launch);
}

}  // namespace fut::cuda
