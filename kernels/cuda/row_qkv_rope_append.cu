// qkv_rope_append on the GPU, BF16 and E4M3 weights. Contract in ops.h.
// launch  Where nothing is rotated by a Hadamard matrix and heads are cut into whole strips: the row
//         product (row_gemm.cuh) alone, the two dims of a RoPE pair in one thread. Else its float32
//         results go through memory and a block for each head and token finishes them. Dependent
//         launches.
// bound   memory: bytes of the matrix, once for each 32 tokens
#include <algorithm>
#include <cmath>

#include "kernels/cuda/row_gemm_launch.cuh"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/row_project.h"
#include "kernels/cuda/step_tokens.cuh"
#include "kernels/numeric/hadamard.h"

namespace fut::cuda {
namespace {

constexpr const char* kOp = "qkv_rope_append";
constexpr int kFinishThreads = 128;

// Where queries, keys and values of a step go.
struct QkvOutputs {
  ActivationView q, k, v;
  KvPages kv;  // data null: to k and v
  RaggedBatch batch;
  const float* cos;
  const float* sin;
  int num_q_heads, num_kv_heads, head_dim;
  std::int64_t first_token;  // of the step, in this launch

  explicit QkvOutputs(const QkvRopeAppendArgs& a, std::int64_t first)
      : q(a.q_out),
        k(a.k_out),
        v(a.v_out),
        kv(a.kv),
        batch(a.batch),
        cos(a.rope_cos),
        sin(a.rope_sin),
        num_q_heads(a.num_q_heads),
        num_kv_heads(a.num_kv_heads),
        head_dim(a.head_dim),
        first_token(first) {}

  __device__ static void put(void* data, DType dtype, std::int64_t i, float value) {
    if (dtype == DType::F32) {
      static_cast<float*>(data)[i] = value;
    } else {
      static_cast<std::uint16_t*>(data)[i] = f32_to_bf16(value);
    }
  }

  // The first element of the slot of a key or value head.
  [[nodiscard]] __device__ std::int64_t slot(std::int64_t token, int head, bool is_value) const {
    const int position = batch.positions[token];
    const int sequence = sequence_of_token(batch, static_cast<int>(token));
    const std::int64_t page = page_of_position(batch, sequence, position);
    const int within = position % layout::kPageTokens;
    return page * kv.page.elements() +
           (is_value ? kv.page.v_offset(head, within) : kv.page.k_offset(head, within));
  }

  // Dims of one head, counted over query, key and value heads: values[i] to dim dims[i]. `token` in
  // this launch.
  template <int kCount>
  __device__ void store(int token, int head, const int (&dims)[kCount],
                        const float (&values)[kCount]) const {
    const std::int64_t t = first_token + token;
    void* data = q.data;
    DType dtype = q.dtype;
    std::int64_t begin = t * q.row_stride + head * head_dim;
    if (head >= num_q_heads) {
      const bool is_value = head >= num_q_heads + num_kv_heads;
      const int kv_head = head - num_q_heads - (is_value ? num_kv_heads : 0);
      if (kv.data != nullptr) {
        data = kv.data;
        dtype = kv.dtype;
        begin = slot(t, kv_head, is_value);
      } else {
        const ActivationView& view = is_value ? v : k;
        data = view.data;
        dtype = view.dtype;
        begin = t * view.row_stride + kv_head * head_dim;
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) put(data, dtype, begin + dims[i], values[i]);
  }

  [[nodiscard]] __device__ bool is_turned(int head) const {
    return head < num_q_heads + num_kv_heads;
  }

  // Turns pair i of a head: two products and one sum each, none fused.
  __device__ void turn(int token, int i, float& a, float& b) const {
    const std::int64_t angle =
        static_cast<std::int64_t>(batch.positions[first_token + token]) * (head_dim / 2) + i;
    const float c = cos[angle];
    const float s = sin[angle];
    const float turned = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
    b = __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s));
    a = turned;
  }
};

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
  const float norm =
      a.rotation_block > 0
          ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.rotation_block)))
          : 1.0F;
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
    LaunchShape shape;
    shape.grid = dim3(static_cast<unsigned>(a.num_q_heads + 2 * a.num_kv_heads),
                      static_cast<unsigned>(count));
    shape.block = kFinishThreads;
    shape.shared_bytes = static_cast<std::size_t>(a.head_dim) * 4;
    launch_dependent(kOp, finish_heads_kernel, shape, context.handle(), projected,
                     QkvOutputs(a, first), a.rotation_block, norm);
  }
}

}  // namespace

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
