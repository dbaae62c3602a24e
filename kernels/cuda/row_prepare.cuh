// Operands of many tokens, made once by a kernel of its own: from some tokens on cheaper than in every
// block of the row product, and the same bits.
// launch  one block for each token, a warp for each segment of K; dependent launch
// bound   latency: a few KB a token
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launch_context.h"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/row_formats.cuh"
#include "kernels/cuda/row_gemm_plan.h"
#include "kernels/layout/k_segments.h"

namespace fut::cuda {

// From this number of tokens on; with four, q, k and v of 8B take 13.8 us without and 15.3 with it.
inline constexpr int kPreparedRowTokens = 5;

// Operands [token][columns, up to the end of the last chunk], and for RowNorm::OnResult r of each.
struct PreparedRows {
  std::uint16_t* operands = nullptr;
  std::int64_t stride = 0;
  float* factors = nullptr;

  [[nodiscard]] static std::int64_t stride_of(const RowMatrix& matrix) {
    return static_cast<std::int64_t>(matrix.num_chunks()) * (kRowChunkBytes / matrix.code_bytes);
  }
  // Of the most tokens of a launch, a multiple of 256.
  [[nodiscard]] static std::size_t bytes(const RowMatrix& matrix) {
    return kMaxRowTokens * 4 + 128 +
           static_cast<std::size_t>(stride_of(matrix)) * kMaxRowTokens * 2;
  }
  PreparedRows(const RowMatrix& matrix, void* memory)
      : operands(reinterpret_cast<std::uint16_t*>(static_cast<std::uint8_t*>(memory) + 256)),
        stride(stride_of(matrix)),
        factors(static_cast<float*>(memory)) {}

  // Those of columns `k` (a multiple of 4) to k + 3.
  __device__ void store(int token, int k, const uint2& four) const {
    *reinterpret_cast<uint2*>(operands + token * stride + k) = four;
  }
};

template <class Format, RowNorm kNorm, class Out>
__global__ void __launch_bounds__(32 * layout::kNumKSegments)
    prepare_rows_kernel(const __grid_constant__ RowTokens tokens, const __grid_constant__ Out out,
                        int num_chunks, int cols) {
  constexpr int kChunkColumns = kRowChunkBytes / Format::kCodeBytes;
  __shared__ float segment_squares[layout::kNumKSegments];
  ptx::take_turn();
  const int token = static_cast<int>(blockIdx.x);
  const int segment = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int begin = layout::k_segment_begin(segment, num_chunks) * kChunkColumns + 4 * lane;
  const int end = layout::k_segment_begin(segment + 1, num_chunks) * kChunkColumns;
  const std::int64_t row = tokens.begin(token);
  const auto load = [&](int column) {
    return column < cols ? tokens.load<false>(row + column) : make_float4(0, 0, 0, 0);
  };
  float squares = 0;
#pragma unroll 4
  for (int k = begin; k < end; k += 128) squares = add_squares(load(k), squares);
  squares = sum_of_lanes(squares);
  if (lane == 0) segment_squares[segment] = squares;
  __syncthreads();
  const float r = warp_inverse_rms(segment_squares, 1, cols, tokens.eps);
  if (kNorm == RowNorm::OnResult && threadIdx.x == 0) out.factors[token] = r;
  const float factor = kNorm == RowNorm::OnResult ? 1.0F : r * tokens.scale;
#pragma unroll 4
  for (int k = begin; k < end; k += 128) {
    out.store(token, k, Format::operand(times(load(k), factor)));
  }
}

// `count` tokens to where `out` stores them.
template <class Format, RowNorm kNorm, class Out>
void launch_prepare_rows(const char* op, const RowTokens& tokens, int count,
                         const RowMatrix& matrix, const Out& out, StreamHandle stream) {
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(count);
  shape.block = 32 * layout::kNumKSegments;
  launch_dependent(op, prepare_rows_kernel<Format, kNorm, Out>, shape, stream, tokens, out,
                   matrix.num_chunks(), matrix.cols);
}

// The same tokens, ready; launches nothing where there are few.
template <class Format, RowNorm kNorm>
[[nodiscard]] RowTokens prepare_rows(const char* op, const RowTokens& tokens, int count,
                                     const RowMatrix& matrix, LaunchContext& context) {
  static_assert(kNorm != RowNorm::None);
  if (count < kPreparedRowTokens) return tokens;
  const PreparedRows out(matrix,
                         context.scratch(ScratchUse::RowOperand, PreparedRows::bytes(matrix)));
  launch_prepare_rows<Format, kNorm>(op, tokens, count, matrix, out, context.handle());
  RowTokens ready = tokens;
  ready.x = out.operands;
  ready.row_stride = out.stride;
  ready.is_ready = true;
  ready.factors = out.factors;
  return ready;
}

}  // namespace fut::cuda
