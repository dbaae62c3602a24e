// Operands of a prompt's products: normalised and rounded rows, and rows copied to where the tensor memory
// engine can read them.
// launch  one block for each token, dependent launch
// bound   memory: what is read and written
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prompt_ops.h"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/row_formats.cuh"
#include "kernels/cuda/tree_sum.cuh"

namespace fut::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kKept = 4;  // times eight numbers a thread that are read once

struct PromptRows {
  const std::uint16_t* x;  // BF16
  std::int64_t stride;
  int cols;  // a multiple of 8
  bool in_eights;

  __device__ void load(float (&v)[8], std::int64_t row, int column) const {
    const std::uint16_t* from = x + row * stride + column;
    uint4 pairs;
    if (in_eights) {
      pairs = *reinterpret_cast<const uint4*>(from);
    } else {
      const auto pair = [&](int i) {
        return static_cast<std::uint32_t>(from[i]) | static_cast<std::uint32_t>(from[i + 1]) << 16;
      };
      pairs = make_uint4(pair(0), pair(2), pair(4), pair(6));
    }
    const std::uint32_t words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = __uint_as_float(words[i] << 16);
      v[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
    }
  }
};

__device__ void put(std::uint8_t* to, const float (&v)[8], float factor) {
  std::uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t low = ptx::e4m3x2(v[4 * i] * factor, v[4 * i + 1] * factor);
    const std::uint32_t high = ptx::e4m3x2(v[4 * i + 2] * factor, v[4 * i + 3] * factor);
    words[i] = low | high << 16;
  }
  *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
}
__device__ void put(std::uint16_t* to, const float (&v)[8], float factor) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = ptx::bf16x2(v[2 * i] * factor, v[2 * i + 1] * factor);
  }
  *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}

// A thread adds its squares as they come, lanes and then warps add up as a tree.
template <class Out>
__global__ void __launch_bounds__(kThreads)
    norm_prompt_kernel(const __grid_constant__ PromptRows rows, Out* out, float eps, float scale) {
  __shared__ float warp_squares[kThreads / 32];
  ptx::take_turn();
  const std::int64_t token = blockIdx.x;
  const int first = 8 * static_cast<int>(threadIdx.x);
  constexpr int kStep = 8 * kThreads;
  float kept[kKept][8];
  float squares = 0;
  const auto add = [&](const float(&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(v[i], v[i], squares);
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    if (first + i * kStep < rows.cols) rows.load(kept[i], token, first + i * kStep);
  }
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    if (first + i * kStep < rows.cols) add(kept[i]);
  }
  for (int column = first + kKept * kStep; column < rows.cols; column += kStep) {
    float v[8];
    rows.load(v, token, column);
    add(v);
  }
  squares = sum_of_lanes(squares);
  if (threadIdx.x % 32 == 0) warp_squares[threadIdx.x / 32] = squares;
  __syncthreads();
  // r times the operand's scale, a power of two: the same bits as one after the other.
  const float factor =
      inverse_rms(tree_sum<kThreads / 32>(warp_squares, 1), rows.cols, eps) * scale;
  Out* to = out + token * rows.cols;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    if (first + i * kStep < rows.cols) put(to + first + i * kStep, kept[i], factor);
  }
  for (int column = first + kKept * kStep; column < rows.cols; column += kStep) {
    float v[8];
    rows.load(v, token, column);
    put(to + column, v, factor);
  }
}

__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(const std::uint8_t* from, std::int64_t stride_bytes, std::uint8_t* to,
                     int row_bytes) {
  ptx::take_turn();
  const std::int64_t token = blockIdx.x;
  for (int i = threadIdx.x; i < row_bytes; i += kThreads) {
    to[token * row_bytes + i] = from[token * stride_bytes + i];
  }
}

std::size_t operand_bytes(const PromptProduct& product) {
  return static_cast<std::size_t>(product.tokens * product.cols * product.code_bytes);
}

}  // namespace

void set_readable_rows(const char* op, const ConstActivationView& x, PromptProduct& product,
                       LaunchContext& context) {
  product.tokens = x.rows;
  product.x = x.data;
  product.x_stride = x.row_stride;
  if (prompt_rows_readable(x)) return;
  auto* copy =
      static_cast<std::uint8_t*>(context.scratch(ScratchUse::RowOperand, operand_bytes(product)));
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(x.rows);
  shape.block = kThreads;
  launch_dependent(op, copy_rows_kernel, shape, context.handle(),
                   static_cast<const std::uint8_t*>(x.data), x.row_stride * dtype_bytes(x.dtype),
                   copy, product.cols * product.code_bytes);
  product.x = copy;
  product.x_stride = product.cols;
}

void set_normed_rows(const char* op, const ConstActivationView& x, float eps, float operand_scale,
                     PromptProduct& product, LaunchContext& context) {
  product.tokens = x.rows;
  product.x_stride = product.cols;
  void* operands = context.scratch(ScratchUse::RowOperand, operand_bytes(product));
  product.x = operands;
  const PromptRows rows = {static_cast<const std::uint16_t*>(x.data), x.row_stride, product.cols,
                           prompt_rows_readable(x)};
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(x.rows);
  shape.block = kThreads;
  if (product.code_bytes == 1) {
    launch_dependent(op, norm_prompt_kernel<std::uint8_t>, shape, context.handle(), rows,
                     static_cast<std::uint8_t*>(operands), eps, operand_scale);
  } else {
    launch_dependent(op, norm_prompt_kernel<std::uint16_t>, shape, context.handle(), rows,
                     static_cast<std::uint16_t*>(operands), eps, 1.0F);
  }
}

}  // namespace fut::cuda
