// Launches the INT4 main loop of batches. Included by the ops' own files.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/int4_batch_gemm.cuh"
#include "kernels/cuda/int4_batch_maps.h"
#include "kernels/cuda/int4_prepare.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launch_context.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/tensor.h"

namespace fut::cuda {

template <class Config, class Epilogue>
void launch_batch_instance(const char* op, const Int4BatchPlan& plan, const Int4BatchMaps& maps,
                           const Epilogue& epilogue, StreamHandle stream) {
  const auto kernel = int4_batch_gemm_kernel<Config, Epilogue>;
  // The same limit always: another thread's launch of this instance may be under way.
  FUT_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
  const LaunchShape shape{
      dim3(static_cast<unsigned>(plan.num_blocks)), dim3(static_cast<unsigned>(plan.threads())),
      static_cast<std::size_t>(plan.args.layout.bytes), static_cast<unsigned>(plan.args.cluster)};
  launch_dependent(op, kernel, shape, stream, plan.args, maps, epilogue);
}

template <int kGroup, int kWarpgroups, class Epilogue>
void launch_batch_group(const char* op, const Int4BatchPlan& plan, const Int4BatchMaps& maps,
                        const Epilogue& epilogue, StreamHandle stream) {
  switch (plan.tiles) {
    case 1:
      return launch_batch_instance<Int4BatchConfig<1, kGroup, kWarpgroups>>(op, plan, maps,
                                                                            epilogue, stream);
    case 2:
      return launch_batch_instance<Int4BatchConfig<2, kGroup, kWarpgroups>>(op, plan, maps,
                                                                            epilogue, stream);
    default:
      return launch_batch_instance<Int4BatchConfig<4, kGroup, kWarpgroups>>(op, plan, maps,
                                                                            epilogue, stream);
  }
}

// Of `count` tokens, kMaxInt4Tokens at most.
template <int kWarpgroups, class Epilogue>
void launch_int4_batch(const char* op, const Int4Matrix& w, int count,
                       const Int4BatchTokens& tokens, const Epilogue& epilogue,
                       const LaunchContext& context) {
  Int4BatchPlan plan =
      plan_int4_batch(w.tile, count, Epilogue::kFetches, kWarpgroups, context.machine());
  plan.args.factors = tokens.factors;
  const Int4BatchMaps maps{batch_token_map(plan, w.tile, tokens),
                           batch_weight_map(plan, w.tile, w.packed)};
  if (w.tile.group == 128) {
    launch_batch_group<128, kWarpgroups>(op, plan, maps, epilogue, context.handle());
  } else {
    launch_batch_group<64, kWarpgroups>(op, plan, maps, epilogue, context.handle());
  }
}

}  // namespace fut::cuda
