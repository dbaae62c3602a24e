// Rounds the tokens of a batch once for all blocks of an INT4 projection, where the main loop for few tokens
// does it in every block; the same bits.
// launch  a block for each token, a warp for each segment of K; dependent launch
// bound   latency: some KB a token
#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/cuda/int4_prepare.cuh"
#include "kernels/cuda/int4_prepare.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launch_context.h"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/layout/k_segments.h"

namespace fut::cuda {
namespace {

constexpr int kSegments = layout::kNumKSegments;

__global__ void __launch_bounds__(32 * kSegments)
    prepare_int4_tokens_kernel(const __grid_constant__ NormedOperand operand, std::uint16_t* out,
                               float* factors, int num_groups, int group) {
  __shared__ float segment_squares[kSegments];
  ptx::take_turn();
  prepare_int4_token(operand, out, factors, num_groups, group, segment_squares);
}

}  // namespace

Int4BatchTokens prepare_int4_tokens(const char* op, const float* x, std::int64_t stride,
                                    int num_tokens, float eps, const layout::Int4Tile& tile,
                                    LaunchContext& context) {
  const int cols = tile.num_groups() * tile.group;
  const std::size_t factor_bytes = sizeof(float) * kMaxInt4Tokens;
  auto* factors = static_cast<float*>(context.scratch(
      ScratchUse::Int4Operand,
      factor_bytes + sizeof(std::uint16_t) * kMaxInt4Tokens * static_cast<std::size_t>(cols)));
  auto* operand = reinterpret_cast<std::uint16_t*>(factors + kMaxInt4Tokens);
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(num_tokens);
  shape.block = 32 * kSegments;
  launch_dependent(op, prepare_int4_tokens_kernel, shape, context.handle(),
                   NormedOperand{x, stride, eps}, operand, factors, tile.num_groups(), tile.group);
  return {operand, cols, factors};
}

}  // namespace fut::cuda
