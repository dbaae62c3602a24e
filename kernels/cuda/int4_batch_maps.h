// Tensor maps of the INT4 main loop of batches. Pulls in CUDA headers.
#pragma once

#include "kernels/cuda/int4_batch_plan.h"
#include "kernels/cuda/int4_prepare.h"
#include "kernels/cuda/tensor_map.h"

namespace fut::cuda {

// Boxes are what a stage of the plan holds.
[[nodiscard]] CUtensorMap batch_token_map(const Int4BatchPlan& plan, const layout::Int4Tile& tile,
                                          const Int4BatchTokens& tokens);
[[nodiscard]] CUtensorMap batch_weight_map(const Int4BatchPlan& plan, const layout::Int4Tile& tile,
                                           const std::uint8_t* packed);

}  // namespace fut::cuda
