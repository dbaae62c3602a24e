// qkv_rope_append on the GPU, BF16 and E4M3 weights. Contract in ops.h.
// launch  Where nothing is rotated by a Hadamard matrix and heads are cut into whole strips: the row
//         product (row_gemm.cuh) alone, the two dims of a RoPE pair in one thread. Else its float32
//         results go through memory and a block for each head and token finishes them. Dependent
//         launches.
// bound   memory: bytes of the matrix, once for each 32 tokens
#include <algorithm>
#include <cmath>

#include "kernels/cuda/qkv_outputs.cuh"
#include "kernels/cuda/row_gemm_launch.cuh"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/row_project.h"
#include "kernels/numeric/hadamard.h"

namespace fut::cuda {
namespace {

constexpr const char* kOp = "qkv_rope_append";
constexpr int kFinishThreads = 128;

// Rows as RowOrder::qkv pairs them.
struct RopeEpilogue {
  QkvOutputs outputs;

  __device__ void store(int token, int lower_row, int upper_row, float lower, float upper) const {
    const int head = lower_row / outputs.head_dim;
    const int dim = lower_row % outputs.head_dim;
    if (outputs.is_turned(head)) outputs.turn(token, dim, lower, upper);
    outputs.store<2>(token, head, {dim, dim + upper_row - lower_row}, {lower, upper});
  }
};

// One head of one token, from [token][outputs of the projection].
__global__ void __launch_bounds__(kFinishThreads)
    finish_heads_kernel(const float* projected, const __grid_constant__ QkvOutputs outputs,
                        int rotation_block, float rotation_norm) {
  extern __shared__ float head_values[];
  ptx::take_turn();
  const int dims = outputs.head_dim;
  const int half = dims / 2;
  const int head = static_cast<int>(blockIdx.x);
  const int token = static_cast<int>(blockIdx.y);
  const float* from = projected + (static_cast<std::int64_t>(token) * gridDim.x + head) * dims;
  const bool is_turned = outputs.is_turned(head);
  for (int i = threadIdx.x; i < half; i += kFinishThreads) {
    float a = from[i];
    float b = from[i + half];
    if (is_turned) outputs.turn(token, i, a, b);
    head_values[i] = a;
    head_values[i + half] = b;
  }
  __syncthreads();
  if (is_turned && rotation_block > 0) {
    for (int distance = 1; distance < rotation_block; distance *= 2) {
      for (int i = threadIdx.x; i < half; i += kFinishThreads) {
        const int first = i / distance * 2 * distance + i % distance;
        const float a = head_values[first];
        const float b = head_values[first + distance];
        head_values[first] = a + b;
        head_values[first + distance] = a - b;
      }
      __syncthreads();
    }
  }
  const float norm = is_turned && rotation_block > 0 ? rotation_norm : 1.0F;
  for (int i = threadIdx.x; i < dims; i += kFinishThreads) {
    outputs.store<1>(token, head, {i}, {head_values[i] * norm});
  }
}

RowMatrix matrix_of(const QkvWeights& weights) {
  if (const auto* apart = std::get_if<QkvMatrices>(&weights)) {
    return row_matrix(kOp, {apart->q_proj, apart->k_proj, apart->v_proj});
  }
  return row_matrix(kOp, std::get<Weights>(weights));
}

void launch_whole(const QkvRopeAppendArgs& a, const RowMatrix& matrix, LaunchContext& context) {
  const auto order = layout::RowOrder::qkv(a.num_q_heads, a.num_kv_heads, a.head_dim);
  for_each_slice(matrix, order, context.machine(), 0, a.x.rows,
                 [&](RowGemmPlan plan, std::int64_t first, int) {
                   RowTokens tokens = row_tokens(a.x, first);
                   tokens.eps = a.eps;
                   set_operand_scale(a.operand_scale, plan.args, tokens);
                   const RopeEpilogue epilogue{QkvOutputs(a, first)};
                   constexpr auto kNorm = RowNorm::BeforeRounding;
                   if (matrix.code_bytes == 2) {
                     launch_row_gemm<Bf16Rows, kNorm>(kOp, plan, tokens, epilogue, context);
                   } else {
                     launch_row_gemm<E4m3Rows, kNorm>(kOp, plan, tokens, epilogue, context);
                   }
                 });
}

void launch_in_two(const QkvRopeAppendArgs& a, const RowMatrix& matrix, LaunchContext& context) {
  const std::int64_t most = std::min<std::int64_t>(a.x.rows, kMaxRowTokens);
  // Behind the place of prepared operands.
  const std::size_t operand_bytes = PreparedRows::bytes(matrix);
  auto* memory = static_cast<std::uint8_t*>(context.scratch(
      ScratchUse::RowOperand, operand_bytes + static_cast<std::size_t>(most * matrix.rows) * 4));
  auto* projected = reinterpret_cast<float*>(memory + operand_bytes);
  for (std::int64_t first = 0; first < a.x.rows; first += most) {
    const std::int64_t count = std::min(most, a.x.rows - first);
    RowProjection p;
    p.op = kOp;
    p.x = a.x;
    p.first = first;
    p.count = count;
    p.eps = a.eps;
    p.operand_scale = a.operand_scale;
    p.matrix = matrix;
    p.out = {projected, count, matrix.rows, matrix.rows};
    row_project(p, context);
    finish_heads(a, projected, first, count, context);
  }
}

}  // namespace

void finish_heads(const QkvRopeAppendArgs& a, const float* projected, std::int64_t first,
                  std::int64_t count, LaunchContext& context) {
  const float norm =
      a.rotation_block > 0
          ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.rotation_block)))
          : 1.0F;
  LaunchShape shape;
  shape.grid =
      dim3(static_cast<unsigned>(a.num_q_heads + 2 * a.num_kv_heads), static_cast<unsigned>(count));
  shape.block = kFinishThreads;
  shape.shared_bytes = static_cast<std::size_t>(a.head_dim) * 4;
  launch_dependent(kOp, finish_heads_kernel, shape, context.handle(), projected,
                   QkvOutputs(a, first), a.rotation_block, norm);
}

void row_qkv_rope_append(const QkvRopeAppendArgs& a, LaunchContext& context) {
  const RowMatrix matrix = matrix_of(a.weights);
  const bool whole_strips = a.head_dim % (2 * layout::RowOrder::kHalfStrip) == 0;
  if (a.rotation_block == 0 && whole_strips) {
    launch_whole(a, matrix, context);
  } else {
    launch_in_two(a, matrix, context);
  }
}

}  // namespace fut::cuda
