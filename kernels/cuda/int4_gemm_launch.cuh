// Launches the instance of the INT4 main loop that a plan names. Included by the ops' own files.
#pragma once

#include <algorithm>
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/int4_gemm.cuh"
#include "kernels/cuda/int4_gemm_instances.h"
#include "kernels/cuda/launch.cuh"

namespace fut::cuda {

// Calls fn(plan, first token) for parts of `count` tokens from `first` on that fit into a block.
template <class Fn>
void for_each_int4_plan(const layout::Int4Tile& tile, std::int64_t first, int count,
                        const Int4GemmUse& use, const Int4GemmMachine& machine, const Fn& fn) {
  if (const auto plan = plan_int4_gemm(tile, count, use, machine)) {
    fn(*plan, first);
    return;
  }
  if (count == 1) no_such_instance({});
  for_each_int4_plan(tile, first, count / 2, use, machine, fn);
  for_each_int4_plan(tile, first + count / 2, count - count / 2, use, machine, fn);
}

template <class Config, class Operand, class Epilogue>
void launch_instance(const char* op, const Int4GemmPlan& plan, const Operand& operand,
                     const Epilogue& epilogue, StreamHandle stream) {
  const auto kernel = int4_gemm_kernel<Config, Operand, Epilogue>;
  // The same limit always: another thread's launch of this instance may be under way.
  FUT_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
  const int bytes = Config::kClusters ? plan.args.layout.bytes
                                      : std::max(plan.args.layout.bytes, kLeastInt4SharedBytes);
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.num_blocks)), dim3(kInt4GemmThreads),
                          static_cast<std::size_t>(bytes),
                          static_cast<unsigned>(plan.args.cluster)};
  launch_dependent(op, kernel, shape, stream, plan.args, operand, epilogue);
}

template <class Operand, class Epilogue>
void launch_int4_gemm(const char* op, int group, const Int4GemmPlan& plan, const Operand& operand,
                      const Epilogue& epilogue, StreamHandle stream) {
  const bool launched = with_int4_instance(group, plan.config, [&](auto config) {
    launch_instance<decltype(config)>(op, plan, operand, epilogue, stream);
  });
  if (!launched) no_such_instance(plan.config);
}

}  // namespace fut::cuda
