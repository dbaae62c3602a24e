// Launches the instance of the INT4 main loop that a plan names. Included by the ops' own files.
#pragma once

#include <algorithm>
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/int4_gemm.cuh"
#include "kernels/cuda/launch.cuh"

namespace fut::cuda {

template <class Config, class Operand, class Epilogue>
void launch_instance(const char* op, const Int4GemmPlan& plan, const Operand& operand,
                     const Epilogue& epilogue, StreamHandle stream) {
  const auto kernel = int4_gemm_kernel<Config, Operand, Epilogue>;
  // The same limit always: another thread's launch of this instance may be under way.
  FUT_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
  const int bytes = std::max(plan.args.layout.bytes, kLeastInt4SharedBytes);
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.num_blocks)), dim3(kInt4GemmThreads),
                          static_cast<std::size_t>(bytes)};
  launch_dependent(op, kernel, shape, stream, plan.args, operand, epilogue);
}

template <int kGroup, class Operand, class Epilogue>
void launch_group(const char* op, const Int4GemmPlan& plan, const Operand& operand,
                  const Epilogue& epilogue, StreamHandle stream) {
  if (plan.piece_groups == 4) {
    launch_instance<Int4GemmConfig<4, kGroup>>(op, plan, operand, epilogue, stream);
  } else {
    launch_instance<Int4GemmConfig<2, kGroup>>(op, plan, operand, epilogue, stream);
  }
}

template <class Operand, class Epilogue>
void launch_int4_gemm(const char* op, int group, const Int4GemmPlan& plan, const Operand& operand,
                      const Epilogue& epilogue, StreamHandle stream) {
  if (group == 128) {
    launch_group<128>(op, plan, operand, epilogue, stream);
  } else {
    launch_group<64>(op, plan, operand, epilogue, stream);
  }
}

}  // namespace fut::cuda
