// gate_up_swiglu on the GPU, BF16 and E4M3 weights: out = silu(proj(x, Wg)) * proj(x, Wu). Contract in
// ops.h.
// launch  the row product (row_gemm.cuh), gate and up of a channel in one thread; dependent launch
// bound   memory: bytes of the matrix, once for each 32 tokens
#include "kernels/cuda/row_gemm_launch.cuh"
#include "kernels/cuda/row_ops.h"

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

}  // namespace

void row_gate_up_swiglu(const GateUpSwigluArgs& a, LaunchContext& context) {
  const RowMatrix matrix = matrix_of(a.weights);
  const auto order = layout::RowOrder::gate_up(static_cast<int>(a.out.cols));
  for_each_slice(matrix, order, context.machine(), 0, a.x.rows,
                 [&](RowGemmPlan plan, std::int64_t first, int) {
                   RowTokens tokens = row_tokens(a.x, first);
                   tokens.eps = a.eps;
                   set_operand_scale(a.operand_scale, plan.args, tokens);
                   const SwigluEpilogue epilogue{
                       static_cast<std::uint8_t*>(a.out.data) +
                           first * a.out.row_stride * dtype_bytes(a.out.dtype),
                       a.out.dtype == DType::E4M3, a.out.row_stride, a.out_scale,
                       context.saturations() + 2};
                   constexpr auto kNorm = RowNorm::BeforeRounding;
                   if (matrix.code_bytes == 2) {
                     launch_row_gemm<Bf16Rows, kNorm>(kOp, plan, tokens, epilogue, context);
                   } else {
                     launch_row_gemm<E4m3Rows, kNorm>(kOp, plan, tokens, epilogue, context);
                   }
                 });
}

}  // namespace fut::cuda
