// linear_residual on the GPU, BF16 and E4M3 weights, a float32 residual: R += x W^T.
// Contract in ops.h.
// launch  the row product (row_gemm.cuh), one block a multiprocessor, dependent launch
// bound   memory: bytes of the matrix, once for each 32 tokens
#include "kernels/cuda/row_gemm_launch.cuh"
#include "kernels/cuda/row_ops.h"

namespace fut::cuda {
namespace {

constexpr const char* kOp = "linear_residual";

struct ResidualEpilogue {
  float* residual;
  std::int64_t stride;

  __device__ void store(int token, int lower_row, int upper_row, float lower, float upper) const {
    if (lower_row >= 0) residual[token * stride + lower_row] += lower;
    if (upper_row >= 0) residual[token * stride + upper_row] += upper;
  }
};

}  // namespace

void row_linear_residual(const LinearResidualArgs& a, LaunchContext& context) {
  const RowMatrix matrix = row_matrix(kOp, a.weight);
  const auto order = layout::RowOrder::natural(matrix.rows);
  for_each_slice(
      matrix, order, context.machine(), 0, a.x.rows,
      [&](RowGemmPlan plan, std::int64_t first, int) {
        plan.args.scale_factor = 1.0F / a.x_scale;
        const RowTokens tokens = row_tokens(a.x, first);
        const ResidualEpilogue epilogue{a.residual.row<float>(first), a.residual.row_stride};
        if (matrix.code_bytes == 2) {
          launch_row_gemm<Bf16Rows, RowNorm::None>(kOp, plan, tokens, epilogue, context);
        } else {
          launch_row_gemm<E4m3Rows, RowNorm::None>(kOp, plan, tokens, epilogue, context);
        }
      });
}

}  // namespace fut::cuda
