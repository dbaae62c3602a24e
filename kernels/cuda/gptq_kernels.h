// Launchers of what GPTQ's ops are made of on the GPU, beside the libraries' products. Includes no CUDA
// header.
#pragma once

#include "kernels/cuda/launch_context.h"
#include "kernels/ops_gptq.h"

namespace fut::cuda {

// sums = partial, or added to them.
void add_partial_sums(const TokenProductsArgs& a, LaunchContext& context);
void finish_moments(const FinishMomentsArgs& a, LaunchContext& context);
// upper = the matrix that the factor is of, rows and columns in the reverse order of the sweep.
void reverse_hessian(const InverseFactorArgs& a, LaunchContext& context);
// m[n, n]: what lies above the diagonal becomes zero.
void clear_upper(double* m, std::int64_t n, LaunchContext& context);
// Rows and columns of a lower triangular matrix in reverse, in place; n is even.
void turn_round(double* m, std::int64_t n, LaunchContext& context);
void gather_columns(const GatherColumnsArgs& a, LaunchContext& context);
void correct_rows(const CorrectRowsArgs& a, LaunchContext& context);
void residuals(const ResidualsArgs& a, LaunchContext& context);
void keep_better(const KeepBetterArgs& a, LaunchContext& context);
void dequantise(const DequantiseArgs& a, LaunchContext& context);
void row_dots(const RowDotsArgs& a, LaunchContext& context);
void sweep_block(const SweepBlockArgs& a, LaunchContext& context);
void descend_block(const DescendBlockArgs& a, LaunchContext& context);

}  // namespace fut::cuda
