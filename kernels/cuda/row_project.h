// Projections with row-after-row weights whose results are float32 as they come: logits, and what
// still has to be finished by another kernel. Includes no CUDA header.
#pragma once

#include "kernels/cuda/launch_context.h"
#include "kernels/cuda/row_gemm_plan.h"

namespace fut::cuda {

struct RowProjection {
  const char* op = "";
  ConstActivationView x;
  const std::int32_t* rows = nullptr;  // which rows of x; null: in order
  std::int64_t first = 0;              // of the tokens, and so of `rows` and of `out`
  std::int64_t count = 0;
  float eps = 0;
  float operand_scale = 1;
  RowMatrix matrix;
  bool is_int8 = false;  // of codes of one byte
  MatrixView<float> out;
};

// out[i - first] = proj(x[rows[i]], W) of ops.h for tokens i from `first` on.
void row_project(const RowProjection& p, LaunchContext& context);

}  // namespace fut::cuda
