// What GPTQ does to matrices element by element, on the GPU; contracts in ops_gptq.h, the work itself in
// gptq_matrices.cuh.
// launch  a thread for each element, 256 to a block, of one row; finish_moments: a block for each row
// bound   memory
#include <cuda_runtime.h>

#include "kernels/cuda/gptq_kernels.h"
#include "kernels/cuda/gptq_matrices.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/numeric/formats.h"

namespace fut::cuda {
namespace {

constexpr int kThreads = 256;

// Rows are blockIdx.y.
[[nodiscard]] __device__ std::int64_t column() {
  return std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
}

struct Square {
  double* m;
  std::int64_t n;
};
struct Sums {
  const float* partial;
  double* sums;
  std::int64_t n;
  bool adds;
};

__global__ void __launch_bounds__(kThreads) add_partial_sums_kernel(Sums a) {
  ptx::take_turn();
  if (column() >= a.n) return;
  const std::int64_t i = std::int64_t{blockIdx.y} * a.n + column();
  a.sums[i] = __dadd_rn(a.adds ? a.sums[i] : 0.0, a.partial[i]);
}

__global__ void __launch_bounds__(kThreads) finish_moments_kernel(FinishMomentsArgs a) {
  ptx::take_turn();
  const std::int64_t row = blockIdx.x;
  for (std::int64_t j = threadIdx.x; j <= row; j += kThreads) finish_moment(a, row, j);
}

__global__ void __launch_bounds__(kThreads) reverse_hessian_kernel(InverseFactorArgs a) {
  ptx::take_turn();
  const std::int64_t row = blockIdx.y;
  if (column() < a.n) a.upper[row * a.n + column()] = reversed_hessian(a, row, column());
}

__global__ void __launch_bounds__(kThreads) clear_upper_kernel(Square a) {
  ptx::take_turn();
  const std::int64_t row = blockIdx.y;
  if (column() > row && column() < a.n) a.m[row * a.n + column()] = 0;
}

// The first half of the rows, with the second.
__global__ void __launch_bounds__(kThreads) turn_round_kernel(Square a) {
  ptx::take_turn();
  if (column() < a.n) turn_round(a.m, a.n, std::int64_t{blockIdx.y} * a.n + column());
}

__global__ void __launch_bounds__(kThreads) gather_columns_kernel(GatherColumnsArgs a) {
  ptx::take_turn();
  if (column() < a.cols) gather_column(a, blockIdx.y, column());
}

__global__ void __launch_bounds__(kThreads) correct_rows_kernel(CorrectRowsArgs a) {
  ptx::take_turn();
  if (column() < a.cols) correct_column(a, blockIdx.y, column());
}

__global__ void __launch_bounds__(kThreads) residuals_kernel(ResidualsArgs a) {
  ptx::take_turn();
  const std::int64_t row = blockIdx.y;
  if (column() < a.q.cols) a.out[row * a.q.cols + column()] = residual_at(a, row, column());
}

__global__ void __launch_bounds__(kThreads) keep_better_kernel(KeepBetterArgs a) {
  ptx::take_turn();
  if (column() < a.q.cols) keep_better_column(a, blockIdx.y, column());
}

__global__ void __launch_bounds__(kThreads) dequantise_kernel(DequantiseArgs a) {
  ptx::take_turn();
  const std::int64_t row = blockIdx.y;
  if (column() < a.q.cols) {
    a.out[row * a.q.cols + column()] = f32_to_bf16(dequantised(a.q, row, column()));
  }
}

template <class Args>
void launch(const char* op, void (*kernel)(Args), std::int64_t rows, std::int64_t cols,
            const Args& args, LaunchContext& context) {
  const LaunchShape shape{dim3(blocks_for(cols, kThreads), static_cast<unsigned>(rows)),
                          dim3(kThreads)};
  launch_dependent(op, kernel, shape, context.handle(), args);
}

}  // namespace

void add_partial_sums(const TokenProductsArgs& a, LaunchContext& context) {
  const std::int64_t n = a.left.cols;
  launch("add_token_products", add_partial_sums_kernel, n, n, Sums{a.partial, a.sums, n, a.adds},
         context);
}

void finish_moments(const FinishMomentsArgs& a, LaunchContext& context) {
  check(a);
  const LaunchShape shape{dim3(static_cast<unsigned>(a.n)), dim3(kThreads)};
  launch_dependent("finish_moments", finish_moments_kernel, shape, context.handle(), a);
}

void reverse_hessian(const InverseFactorArgs& a, LaunchContext& context) {
  launch("inverse_factor", reverse_hessian_kernel, a.n, a.n, a, context);
}

void clear_upper(double* m, std::int64_t n, LaunchContext& context) {
  launch("inverse_factor", clear_upper_kernel, n, n, Square{m, n}, context);
}

void turn_round(double* m, std::int64_t n, LaunchContext& context) {
  launch("inverse_factor", turn_round_kernel, n / 2, n, Square{m, n}, context);
}

void gather_columns(const GatherColumnsArgs& a, LaunchContext& context) {
  check(a);
  launch("gather_columns", gather_columns_kernel, a.rows, a.cols, a, context);
}

void correct_rows(const CorrectRowsArgs& a, LaunchContext& context) {
  check(a);
  launch("correct_rows", correct_rows_kernel, a.rows, a.cols, a, context);
}

void residuals(const ResidualsArgs& a, LaunchContext& context) {
  check(a);
  launch("residuals", residuals_kernel, a.q.rows, a.q.cols, a, context);
}

void keep_better(const KeepBetterArgs& a, LaunchContext& context) {
  check(a);
  launch("keep_better", keep_better_kernel, a.q.rows, a.q.cols, a, context);
}

void dequantise(const DequantiseArgs& a, LaunchContext& context) {
  check(a);
  launch("dequantise", dequantise_kernel, a.q.rows, a.q.cols, a, context);
}

}  // namespace fut::cuda
