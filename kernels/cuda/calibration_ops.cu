// What calibration asks beside the model's own ops: rounding of weights, inputs behind a norm, sums over
// tokens, powers of two. Contracts in ops_offline.h.
// launch  round_to_bf16: a thread for each number. normalise and shift: a block for each row. column_sums:
//         a thread for each column
// bound   memory; column_sums: one chain of float64 additions a column
#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/offline_ops.h"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/rms.cuh"
#include "kernels/numeric/formats.h"

namespace fut::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSumThreads = 64;  // few: columns are, too

__global__ void __launch_bounds__(kThreads) round_to_bf16_kernel(RoundToBf16Args a) {
  ptx::take_turn();
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < a.count) a.out[i] = f32_to_bf16(a.values[i]);
}

struct NormaliseRows {
  const std::uint16_t* x;
  std::uint16_t* out;
  std::int64_t cols, x_stride, out_stride;
  float eps;
};

__global__ void __launch_bounds__(kThreads) normalise_kernel(NormaliseRows a) {
  __shared__ float squares[kThreads / 32];
  ptx::take_turn();
  const std::uint16_t* x = a.x + std::int64_t{blockIdx.x} * a.x_stride;
  std::uint16_t* out = a.out + std::int64_t{blockIdx.x} * a.out_stride;
  float sum = 0;
  for (std::int64_t c = threadIdx.x; c < a.cols; c += kThreads) {
    const float value = bf16_to_f32(x[c]);
    sum += value * value;
  }
  sum = sum_of_lanes(sum);
  if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = sum;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) total += squares[w];
  const float r = inverse_rms(total, static_cast<int>(a.cols), a.eps);
  for (std::int64_t c = threadIdx.x; c < a.cols; c += kThreads) {
    out[c] = f32_to_bf16(bf16_to_f32(x[c]) * r);
  }
}

struct SummedColumns {
  const std::uint16_t* x;
  std::int64_t rows, cols, stride;
  double* squares;
  float* largest;
};

__global__ void __launch_bounds__(kSumThreads) column_sums_kernel(SummedColumns a) {
  ptx::take_turn();
  const std::int64_t c = std::int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (c >= a.cols) return;
  double sum = a.squares[c];
  float largest = a.largest[c];
#pragma unroll 8
  for (std::int64_t t = 0; t < a.rows; ++t) {
    const float value = bf16_to_f32(a.x[t * a.stride + c]);
    sum = __dadd_rn(sum, __dmul_rn(value, value));
    largest = fmaxf(largest, fabsf(value));
  }
  a.squares[c] = sum;
  a.largest[c] = largest;
}

__global__ void __launch_bounds__(kThreads) shift_kernel(ShiftArgs a) {
  ptx::take_turn();
  const std::int64_t row = blockIdx.x;
  const int of_row = a.row_exponents == nullptr ? 0 : a.row_exponents[row];
  float* w = a.w.data + row * a.w.row_stride;
  for (std::int64_t c = threadIdx.x; c < a.w.cols; c += kThreads) {
    const int of_column = a.column_exponents == nullptr ? 0 : a.column_exponents[c];
    if (of_row != of_column) w[c] = ldexpf(w[c], of_row - of_column);
  }
}

}  // namespace

void round_to_bf16(const RoundToBf16Args& a, LaunchContext& context) {
  check(a);
  const LaunchShape shape{dim3(blocks_for(a.count, kThreads)), dim3(kThreads)};
  launch_dependent("round_to_bf16", round_to_bf16_kernel, shape, context.handle(), a);
}

void normalise(const NormaliseArgs& a, LaunchContext& context) {
  check(a);
  const NormaliseRows rows{static_cast<const std::uint16_t*>(a.x.data),
                           static_cast<std::uint16_t*>(a.out.data),
                           a.x.cols,
                           a.x.row_stride,
                           a.out.row_stride,
                           a.eps};
  const LaunchShape shape{dim3(static_cast<unsigned>(a.x.rows)), dim3(kThreads)};
  launch_dependent("normalise", normalise_kernel, shape, context.handle(), rows);
}

void column_sums(const ColumnSumsArgs& a, LaunchContext& context) {
  check(a);
  const SummedColumns columns{static_cast<const std::uint16_t*>(a.x.data),
                              a.x.rows,
                              a.x.cols,
                              a.x.row_stride,
                              a.squares,
                              a.largest};
  const LaunchShape shape{dim3(blocks_for(a.x.cols, kSumThreads)), dim3(kSumThreads)};
  launch_dependent("column_sums", column_sums_kernel, shape, context.handle(), columns);
}

void shift(const ShiftArgs& a, LaunchContext& context) {
  check(a);
  const LaunchShape shape{dim3(static_cast<unsigned>(a.w.rows)), dim3(kThreads)};
  launch_dependent("shift", shift_kernel, shape, context.handle(), a);
}

}  // namespace fut::cuda
