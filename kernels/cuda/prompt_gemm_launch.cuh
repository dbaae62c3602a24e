// Launches the prompt product for any number of tokens. Included by the ops' own files.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launch_context.h"
#include "kernels/cuda/prompt_epilogue.cuh"
#include "kernels/cuda/tensor_map.h"

namespace fut::cuda {

[[nodiscard]] inline PromptMaps prompt_maps(const PromptProduct& product,
                                            const PromptGemmPlan& plan) {
  PromptMaps maps = {};
  TensorMapShape shape;
  shape.data = product.x;
  shape.element_bytes = product.code_bytes;
  shape.rows = product.tokens;
  shape.cols = product.cols;
  shape.stride_bytes = product.x_stride * product.code_bytes;
  shape.box_rows = layout::kPromptTileTokens;
  maps.x = make_tensor_map(shape);
  shape.stride_bytes = std::int64_t{product.cols} * product.code_bytes;
  shape.box_rows = plan.tile_rows / 2;
  shape.spread = plan.args.spread;
  for (int i = 0; i < product.num_parts; ++i) {
    shape.data = product.parts[i].data;
    shape.rows = product.parts[i].rows;
    maps.weights[i] = make_tensor_map(shape);
  }
  return maps;
}

template <class Format, int kTileRows, bool kSpread, class Epilogue>
void launch_prompt_instance(const char* op, const PromptProduct& product,
                            const PromptGemmPlan& plan, const Epilogue& epilogue,
                            StreamHandle stream) {
  const auto kernel = prompt_gemm_kernel<Format, kTileRows, kSpread, Epilogue>;
  FUT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      prompt_shared_bytes(kTileRows)));
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(plan.num_blocks);
  shape.block = kPromptThreads;
  shape.shared_bytes = static_cast<std::size_t>(prompt_shared_bytes(kTileRows));
  shape.cluster = static_cast<unsigned>(plan.args.cluster);
  launch_dependent(op, kernel, shape, stream, prompt_maps(product, plan), plan.args, epilogue);
}

template <class Format, class Epilogue>
void launch_prompt_format(const char* op, const PromptProduct& product, const PromptGemmPlan& plan,
                          const Epilogue& epilogue, StreamHandle stream) {
  if (!plan.args.spread) {
    launch_prompt_instance<Format, 128, false>(op, product, plan, epilogue, stream);
  } else if (plan.tile_rows == 256) {
    launch_prompt_instance<Format, 256, true>(op, product, plan, epilogue, stream);
  } else {
    launch_prompt_instance<Format, 128, true>(op, product, plan, epilogue, stream);
  }
}

template <class Epilogue>
void launch_prompt_plan(const char* op, const PromptProduct& product, const PromptGemmPlan& plan,
                        const Epilogue& epilogue, StreamHandle stream) {
  if (product.code_bytes == 1) {
    launch_prompt_format<PromptE4m3>(op, product, plan, epilogue, stream);
  } else {
    launch_prompt_format<PromptBf16>(op, product, plan, epilogue, stream);
  }
}

// in_eights: the epilogue may read and write eight neighbouring numbers at once.
template <class Epilogue>
void launch_prompt_gemm(const char* op, const PromptProduct& product, float scale_factor,
                        bool in_eights, const Epilogue& epilogue, LaunchContext& context) {
  PromptGemmPlan plan = plan_prompt_gemm(product, in_eights, context.machine());
  plan.args.scale_factor = scale_factor;
  launch_prompt_plan(op, product, plan, epilogue, context.handle());
}

}  // namespace fut::cuda
