// The ops on a prompt's tokens on the GPU, BF16 and E4M3 weights: launchers behind cuda_ops.h. Whether
// tokens are a prompt's is said by types, never by their number: x or residual in BF16. Includes no
// CUDA header.
#pragma once

#include "kernels/cuda/launch_context.h"
#include "kernels/cuda/prompt_gemm_plan.h"
#include "kernels/ops.h"

namespace fut::cuda {

// The same bits for a token whatever other tokens there are. Weights may be what the kernel before wrote
// (expand): they are no more to be touched early than operands are.
void prompt_qkv_rope_append(const QkvRopeAppendArgs& a, LaunchContext& context);
void prompt_linear_residual(const LinearResidualArgs& a, LaunchContext& context);
void prompt_gate_up_swiglu(const GateUpSwigluArgs& a, LaunchContext& context);

// Plain products, results in float32 as the sums give them times their scales and `factor`: for ops that
// finish them elsewhere, tests and measurements. With a plan in spread order `out` and its rows lie at
// multiples of 16 bytes.
void prompt_project(const PromptProduct& product, const PromptGemmPlan& plan, MatrixView<float> out,
                    LaunchContext& context);
// The same, rounded to BF16.
void prompt_project_bf16(const PromptProduct& product, const PromptGemmPlan& plan,
                         MatrixView<std::uint16_t> out, LaunchContext& context);

// Sets x of `product`: rows of operands as they lie, or copied to where they can be read.
void set_readable_rows(const char* op, const ConstActivationView& x, PromptProduct& product,
                       LaunchContext& context);
// Sets x of `product` to the normalised and rounded rows of x (BF16), as proj() of ops.h has them.
void set_normed_rows(const char* op, const ConstActivationView& x, float eps, float operand_scale,
                     PromptProduct& product, LaunchContext& context);

}  // namespace fut::cuda
