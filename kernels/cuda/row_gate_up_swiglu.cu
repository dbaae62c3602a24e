// gate_up_swiglu on the GPU, BF16 and E4M3 weights: out = silu(proj(x, Wg)) * proj(x, Wu). Contract in
// ops.h.
// launch  a row product (row_gemm.cuh; 9 to 32 tokens with E4M3 weights: row_tile_gemm.cuh), gate and up of
//         a channel in one thread; dependent launch
// bound   memory: bytes of the matrix, once for each 32 tokens
#include "kernels/cuda/row_gemm_launch.cuh"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/row_tile_gemm_launch.cuh"

namespace fut::cuda {
namespace {

constexpr const char* kOp = "gate_up_swiglu";

// Rows of gate are channels; those of up follow.
struct SwigluEpilogue {
  void* out;
  bool is_e4m3;
  std::int64_t stride;
  float out_scale;
  std::uint64_t* num_saturated;

  __device__ void store(int token, int gate_row, int, float gate, float up) const {
    if (gate_row < 0) return;
    const std::int64_t i = token * stride + gate_row;
    const float h = gate / (1.0F + expf(-gate)) * up;
    if (!is_e4m3) {
      static_cast<std::uint16_t*>(out)[i] = f32_to_bf16(h);
      return;
    }
    const float scaled = h * out_scale;
    static_cast<std::uint8_t*>(out)[i] = f32_to_e4m3(scaled);
    if (e4m3_saturates(scaled)) {
      atomicAdd(reinterpret_cast<unsigned long long*>(num_saturated), 1ULL);
    }
  }
};

RowMatrix matrix_of(const GateUpWeights& weights) {
  if (const auto* apart = std::get_if<GateUpMatrices>(&weights)) {
    return row_matrix(kOp, {apart->gate_proj, apart->up_proj});
  }
  return row_matrix(kOp, std::get<Weights>(weights));
}

RowTokens tokens_of(const GateUpSwigluArgs& a, std::int64_t first) {
  RowTokens tokens = row_tokens(a.x, first);
  tokens.eps = a.eps;
  return tokens;
}

SwigluEpilogue epilogue_of(const GateUpSwigluArgs& a, std::int64_t first, LaunchContext& context) {
  return {
      static_cast<std::uint8_t*>(a.out.data) + first * a.out.row_stride * dtype_bytes(a.out.dtype),
      a.out.dtype == DType::E4M3, a.out.row_stride, a.out_scale, context.saturations() + 2};
}

constexpr auto kNorm = RowNorm::BeforeRounding;

// Up to 16 the product of rows is the faster one (README.md of this folder).
constexpr std::int64_t kLeastTileTokens = 17;

void multiply_tiles(const GateUpSwigluArgs& a, const RowMatrix& matrix,
                    const layout::RowOrder& order, std::int64_t first, std::int64_t count,
                    LaunchContext& context) {
  RowTokens tokens = tokens_of(a, first);
  tokens.scale = a.operand_scale;
  launch_row_tiles<E4m3Rows, kNorm, true>(kOp, matrix, order, 1.0F / a.operand_scale, tokens,
                                          static_cast<int>(count), epilogue_of(a, first, context),
                                          context);
}

void multiply_rows(const GateUpSwigluArgs& a, const RowMatrix& matrix,
                   const layout::RowOrder& order, std::int64_t first, std::int64_t count,
                   LaunchContext& context) {
  for_each_slice(matrix, order, context.machine(), first, count,
                 [&](RowGemmPlan plan, std::int64_t from, int) {
                   RowTokens tokens = tokens_of(a, from);
                   set_operand_scale(a.operand_scale, plan.args, tokens);
                   const SwigluEpilogue epilogue = epilogue_of(a, from, context);
                   if (matrix.code_bytes == 2) {
                     launch_row_gemm<Bf16Rows, kNorm>(kOp, plan, tokens, epilogue, context);
                   } else {
                     launch_row_gemm<E4m3Rows, kNorm>(kOp, plan, tokens, epilogue, context);
                   }
                 });
}

}  // namespace

void row_gate_up_swiglu(const GateUpSwigluArgs& a, LaunchContext& context) {
  const RowMatrix matrix = matrix_of(a.weights);
  const auto order = layout::RowOrder::gate_up(static_cast<int>(a.out.cols));
  for (std::int64_t first = 0; first < a.x.rows; first += kMaxRowTokens) {
    const std::int64_t count = std::min<std::int64_t>(a.x.rows - first, kMaxRowTokens);
    if (count >= kLeastTileTokens && takes_row_tiles(matrix, count, context)) {
      multiply_tiles(a, matrix, order, first, count, context);
    } else {
      multiply_rows(a, matrix, order, first, count, context);
    }
  }
}

}  // namespace fut::cuda
