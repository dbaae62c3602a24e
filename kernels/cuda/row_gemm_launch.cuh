// Launches the row product for any number of tokens, in slices that fit. Included by the ops' own
// files.
#pragma once

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launch_context.h"
#include "kernels/cuda/row_gemm.cuh"
#include "kernels/cuda/row_prepare.cuh"

namespace fut::cuda {

template <class Format, RowNorm kNorm, int kTiles, class Epilogue>
void launch_row_instance(const char* op, const RowGemmPlan& plan, const RowTokens& tokens,
                         const Epilogue& epilogue, StreamHandle stream) {
  const auto kernel = row_gemm_kernel<Format, kNorm, kTiles, Epilogue>;
  // The same limit always: another thread's launch of this instance may be under way.
  FUT_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(plan.num_blocks / plan.args.cluster * plan.args.cluster);
  shape.block = kRowGemmThreads;
  shape.shared_bytes = static_cast<std::size_t>(plan.args.layout.bytes);
  shape.cluster = static_cast<unsigned>(plan.args.cluster);
  launch_dependent(op, kernel, shape, stream, plan.args, tokens, epilogue);
}

template <class Format, RowNorm kNorm, class Epilogue>
void launch_row_gemm(const char* op, const RowGemmPlan& plan, const RowTokens& given,
                     const Epilogue& epilogue, LaunchContext& context) {
  RowTokens tokens = given;
  if constexpr (kNorm != RowNorm::None) {
    tokens =
        prepare_rows<Format, kNorm>(op, given, plan.args.num_tokens, plan.args.matrix, context);
  }
  const StreamHandle stream = context.handle();
  if (plan.tiles == 1) {
    launch_row_instance<Format, kNorm, 1>(op, plan, tokens, epilogue, stream);
  } else if (plan.tiles == 2) {
    launch_row_instance<Format, kNorm, 2>(op, plan, tokens, epilogue, stream);
  } else {
    launch_row_instance<Format, kNorm, 4>(op, plan, tokens, epilogue, stream);
  }
}

// Calls launch(plan, first token, number of tokens) for slices of `count` tokens from `first` on.
template <class Launch>
void for_each_slice(const RowMatrix& matrix, const layout::RowOrder& order,
                    const Int4GemmMachine& machine, std::int64_t first, std::int64_t count,
                    const Launch& launch) {
  for (; count > kMaxRowTokens; first += kMaxRowTokens, count -= kMaxRowTokens) {
    for_each_slice(matrix, order, machine, first, kMaxRowTokens, launch);
  }
  const auto plan = plan_row_gemm(matrix, order, static_cast<int>(count), machine);
  if (plan) {
    launch(*plan, first, static_cast<int>(count));
    return;
  }
  if (count == 1) too_wide_for_rows(matrix);
  for_each_slice(matrix, order, machine, first, count / 2, launch);
  for_each_slice(matrix, order, machine, first + count / 2, count - count / 2, launch);
}

// Rows of a view from `first` on as tokens.
[[nodiscard]] inline RowTokens row_tokens(const ConstActivationView& x, std::int64_t first) {
  RowTokens tokens;
  tokens.x = static_cast<const std::uint8_t*>(x.data) + first * x.row_stride * dtype_bytes(x.dtype);
  tokens.dtype = x.dtype;
  tokens.row_stride = x.row_stride;
  const auto first_byte = reinterpret_cast<std::uintptr_t>(x.data);
  const auto width = static_cast<std::uintptr_t>(dtype_bytes(x.dtype));
  const auto stride = static_cast<std::uintptr_t>(x.row_stride) * width;
  tokens.in_fours = first_byte % (4 * width) == 0 && stride % (4 * width) == 0;
  tokens.in_sixteens = first_byte % 16 == 0 && stride % 16 == 0;
  return tokens;
}

// What E4M3 operands are multiplied by, and their sums divided by; other weights have no such scale.
inline void set_operand_scale(float scale, RowGemmArgs& args, RowTokens& tokens) {
  if (args.matrix.code_bytes != 1) return;
  tokens.scale = scale;
  args.scale_factor = 1.0F / scale;
}

}  // namespace fut::cuda
