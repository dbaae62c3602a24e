// Launches the instance of the INT4 main loop that a plan names. Included by the ops' own files.
#pragma once

#include <algorithm>
#include <cuda_runtime.h>
#include <type_traits>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/int4_gemm.cuh"
#include "kernels/cuda/launch.cuh"

namespace fut::cuda {

template <class Config>
[[nodiscard]] constexpr Int4GemmConfigValues values_of() {
  return {Config::kTiles, Config::kSegments, Config::kPieceGroups, Config::kClusters};
}

// Calls fn(plan, first token) for parts of `count` tokens from `first` on that fit into a block.
template <class Fn>
void for_each_int4_plan(const layout::Int4Tile& tile, std::int64_t first, int count,
                        int input_bytes, const Int4GemmMachine& machine, const Fn& fn) {
  if (const auto plan = plan_int4_gemm(tile, count, input_bytes, machine)) {
    fn(*plan, first);
    return;
  }
  if (count == 1) no_such_instance({});
  for_each_int4_plan(tile, first, count / 2, input_bytes, machine, fn);
  for_each_int4_plan(tile, first + count / 2, count - count / 2, input_bytes, machine, fn);
}

template <class Config, class Operand, class Epilogue>
void launch_instance(const char* op, const Int4GemmPlan& plan, const Operand& operand,
                     const Epilogue& epilogue, StreamHandle stream) {
  const auto kernel = int4_gemm_kernel<Config, Operand, Epilogue>;
  // The same limit always: another thread's launch of this instance may be under way.
  FUT_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
  const int bytes = std::max(plan.args.layout.bytes, Epilogue::kLeastSharedBytes);
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.num_blocks)), dim3(kInt4GemmThreads),
                          static_cast<std::size_t>(bytes),
                          static_cast<unsigned>(plan.args.cluster)};
  launch_dependent(op, kernel, shape, stream, plan.args, operand, epilogue);
}

// Tries the instances one after the other; false: none of them is meant.
template <int kGroup, class Operand, class Epilogue>
[[nodiscard]] bool launch_any(const char* op, const Int4GemmPlan& plan, const Operand& operand,
                              const Epilogue& epilogue, StreamHandle stream) {
  const auto try_one = [&]<class Config>(Config) {
    if (values_of<Config>() != plan.config) return false;
    launch_instance<Config>(op, plan, operand, epilogue, stream);
    return true;
  };
  const auto try_segments = [&]<int kTiles>(std::integral_constant<int, kTiles>) {
    return try_one(Int4GemmConfig<kTiles, 1, 1, true, kGroup>{}) ||
           try_one(Int4GemmConfig<kTiles, 2, 1, true, kGroup>{}) ||
           try_one(Int4GemmConfig < kTiles, kTiles == 4 ? 2 : 4, 1, true, kGroup > {});
  };
  if constexpr (kGroup == 128) {
    if (try_segments(std::integral_constant<int, 4>{})) return true;
  }
  return try_one(Int4GemmConfig<1, 1, 2, false, kGroup>{}) ||
         try_one(Int4GemmConfig<1, 1, 4, false, kGroup>{}) ||
         try_segments(std::integral_constant<int, 1>{}) ||
         try_segments(std::integral_constant<int, 2>{});
}

template <class Operand, class Epilogue>
void launch_int4_gemm(const char* op, int group, const Int4GemmPlan& plan, const Operand& operand,
                      const Epilogue& epilogue, StreamHandle stream) {
  const bool launched = group == 128 ? launch_any<128>(op, plan, operand, epilogue, stream)
                                     : launch_any<64>(op, plan, operand, epilogue, stream);
  if (!launched) no_such_instance(plan.config);
}

}  // namespace fut::cuda
