// Projections of 9 to 32 tokens with INT8 weights whose results are float32 as they come. Includes no CUDA
// header.
#pragma once

#include "kernels/cuda/launch_context.h"
#include "kernels/cuda/row_project.h"

namespace fut::cuda {

// Whether head_project() takes so many tokens on this chip, of weights that row_project() takes as well.
[[nodiscard]] bool has_head_project(const RowProjection& p, const LaunchContext& context);

// As row_project(), and the same bits.
void head_project(const RowProjection& p, LaunchContext& context);

}  // namespace fut::cuda
