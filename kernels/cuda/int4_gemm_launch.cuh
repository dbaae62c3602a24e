// Launches the instance of the INT4 main loop that a plan names. Included by the ops' own files.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/int4_gemm.cuh"

namespace fut::cuda {

template <class Config>
[[nodiscard]] constexpr Int4GemmConfigValues values_of() {
  return {Config::kTiles, Config::kCluster, Config::kPieceGroups, Config::kStages,
          Config::kHeldGroups};
}

template <class Config, class Operand, class Epilogue>
void launch_instance(const Int4GemmPlan& plan, const Operand& operand, const Epilogue& epilogue,
                     StreamHandle stream) {
  const auto kernel = int4_gemm_kernel<Config, Operand, Epilogue>;
  // The same limit always: another thread's launch of this instance may be under way.
  FUT_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
  cudaLaunchConfig_t launch = {};
  launch.gridDim = plan.num_blocks / Config::kCluster * Config::kCluster;
  launch.blockDim = kInt4GemmThreads;
  launch.dynamicSmemBytes = static_cast<std::size_t>(plan.args.layout.bytes);
  launch.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {Config::kCluster, 1, 1};
  launch.attrs = attributes;
  launch.numAttrs = Config::kCluster > 1 ? 2 : 1;
  FUT_CUDA_CHECK(cudaLaunchKernelEx(&launch, kernel, plan.args, operand, epilogue));
}

// Tries the instances one after the other; false: none of them is meant.
template <int kGroup, class Operand, class Epilogue>
[[nodiscard]] bool launch_any(const Int4GemmPlan& plan, const Operand& operand,
                              const Epilogue& epilogue, StreamHandle stream) {
  const auto try_one = [&]<class Config>(Config) {
    if (values_of<Config>() != plan.config) return false;
    launch_instance<Config>(plan, operand, epilogue, stream);
    return true;
  };
  return try_one(Int4GemmConfig<1, 1, 2, 2, 0, kGroup>{}) ||
         try_one(Int4GemmConfig<1, 1, 2, 3, 2, kGroup>{}) ||
         try_one(Int4GemmConfig<1, 1, 4, 2, 0, kGroup>{}) ||
         try_one(Int4GemmConfig<1, 2, 2, 2, 0, kGroup>{}) ||
         try_one(Int4GemmConfig<1, 4, 2, 2, 0, kGroup>{}) ||
         try_one(Int4GemmConfig<2, 2, 2, 2, 0, kGroup>{}) ||
         try_one(Int4GemmConfig<2, 4, 2, 2, 0, kGroup>{}) ||
         try_one(Int4GemmConfig<4, 4, 1, 2, 0, kGroup>{}) ||
         try_one(Int4GemmConfig<4, 8, 1, 2, 0, kGroup>{});
}

template <class Operand, class Epilogue>
void launch_int4_gemm(const char* op, int group, const Int4GemmPlan& plan, const Operand& operand,
                      const Epilogue& epilogue, StreamHandle stream) {
  const bool launched = group == 128 ? launch_any<128>(plan, operand, epilogue, stream)
                                     : launch_any<64>(plan, operand, epilogue, stream);
  if (!launched) no_such_instance(plan.config);
  check_launch(op, stream);
}

}  // namespace fut::cuda
