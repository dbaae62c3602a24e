// What GPTQ does to one row of codes, by one warp: a block of columns swept, codes and scales moved to
// their optimum, dot products. Operation by operation as loader/gptq.cpp has them, so that no bit
// differs; contracts in ops_gptq.h.
//
// work     Column i of a block is lane i % 32's, as its number i / 32. Each lane works out what its own
//          column would do now; the step of the column whose turn it is goes round the warp.
// bound    latency: 128 steps one after the other, a division or two in each
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/numeric/int4_code.h"
#include "kernels/ops_gptq.h"

namespace fut::cuda {

inline constexpr int kWarpColumns = 32;
inline constexpr int kOfLane = kGptqBlockColumns / kWarpColumns;  // columns of a lane
inline constexpr unsigned kWholeWarp = 0xFFFFFFFFU;

// y + factor * x in two roundings.
__device__ inline double add_scaled(double y, double factor, double x) {
  return __dadd_rn(y, __dmul_rn(factor, x));
}

// Of matrix[rows, cols], the block's columns of one row: this lane's.
template <class T>
__device__ inline void load_columns(T (&out)[kOfLane], const T* row, int lane) {
#pragma unroll
  for (int q = 0; q < kOfLane; ++q) out[q] = row[kWarpColumns * q + lane];
}

// ---- the sweep ------------------------------------------------------------------------------------

__device__ inline void sweep_row(const SweepBlockArgs& a, std::int64_t row, int lane) {
  const std::int64_t cols = a.q.cols;
  const double* block = a.upper + a.begin * cols + a.begin;  // of U, its diagonal's block
  double weights[kOfLane], pivots[kOfLane], negated[kOfLane];
  std::int32_t places[kOfLane];
  Int4Scale scales[kOfLane];
  load_columns(weights, a.weights + row * cols + a.begin, lane);
  load_columns(places, a.order + a.begin, lane);
#pragma unroll
  for (int q = 0; q < kOfLane; ++q) {
    const int column = kWarpColumns * q + lane;
    pivots[q] = block[column * cols + column];
    scales[q] = {a.q.scales[row * (cols / a.q.group_size) + places[q] / a.q.group_size]};
  }
#pragma unroll
  for (int turn = 0; turn < kOfLane; ++turn) {
#pragma unroll 1
    for (int from = 0; from < kWarpColumns; ++from) {
      const int code = encode_int4(weights[turn], scales[turn]);
      const double error =
          __ddiv_rn(__dsub_rn(weights[turn], static_cast<double>(decode_int4(code, scales[turn]))),
                    pivots[turn]);
      if (lane == from) {
        a.q.codes[row * cols + places[turn]] = static_cast<std::int8_t>(code);
        negated[turn] = -error;
      }
      const double moved = __shfl_sync(kWholeWarp, -error, from);
      const int column = kWarpColumns * turn + from;
      const double* factors = block + column * cols;
#pragma unroll
      for (int q = turn; q < kOfLane; ++q) {
        const int own = kWarpColumns * q + lane;
        if (own > column) weights[q] = add_scaled(weights[q], moved, factors[own]);
      }
    }
  }
#pragma unroll
  for (int q = 0; q < kOfLane; ++q) {
    a.negated[row * kGptqBlockColumns + kWarpColumns * q + lane] = negated[q];
  }
}

// ---- the descent ----------------------------------------------------------------------------------

// One row's block on its way down.
class RowDescent {
 public:
  __device__ RowDescent(const DescendBlockArgs& a, std::int64_t row, int lane)
      : a_(a),
        row_(row),
        lane_(lane),
        block_(a.h + a.begin * a.q.cols + a.begin),
        first_scale_(row * (a.q.cols / a.q.group_size) + a.begin / a.q.group_size) {
    const std::int64_t first = row * a.q.cols + a.begin;
    load_columns(residual_, a.residual + first, lane);
    load_columns(product_, a.product + first, lane);
    std::int8_t codes[kOfLane];
    load_columns(codes, a.q.codes + first, lane);
#pragma unroll
    for (int q = 0; q < kOfLane; ++q) {
      codes_[q] = codes[q];
      negated_[q] = 0;
    }
  }

  __device__ void improve_codes() {
#pragma unroll
    for (int turn = 0; turn < kOfLane; ++turn) {
      const int own = kWarpColumns * turn + lane_;
      const Int4Scale scale{a_.q.scales[first_scale_ + own / a_.q.group_size]};
      const double curvature = __dadd_rn(block_[own * a_.q.cols + own], a_.ridge);
#pragma unroll 1
      for (int from = 0; from < kWarpColumns; ++from) {
        const double down = slope(turn);
        const double value = decode_int4(codes_[turn], scale);
        const int better = encode_int4(__dadd_rn(value, __ddiv_rn(down, curvature)), scale);
        const double step = __dsub_rn(static_cast<double>(decode_int4(better, scale)), value);
        const double moved = lowers(step, down, curvature) ? step : 0.0;
        if (lane_ == from && moved != 0) {
          codes_[turn] = better;
          leave(turn, moved);
        }
        follow(kWarpColumns * turn + from, __shfl_sync(kWholeWarp, moved, from));
      }
    }
  }

  // kOfGroup: columns of a group that one lane has.
  template <int kOfGroup>
  __device__ void improve_scales() {
#pragma unroll
    for (int g = 0; g < kOfLane / kOfGroup; ++g) improve_scale<kOfGroup>(g);
  }

  __device__ void store() const {
    const std::int64_t first = row_ * a_.q.cols + a_.begin;
#pragma unroll
    for (int q = 0; q < kOfLane; ++q) {
      const int own = kWarpColumns * q + lane_;
      a_.residual[first + own] = residual_[q];
      a_.q.codes[first + own] = static_cast<std::int8_t>(codes_[q]);
      a_.negated[row_ * kGptqBlockColumns + own] = negated_[q];
    }
  }

 private:
  // Half the derivative along -residual of this lane's column.
  [[nodiscard]] __device__ double slope(int q) const {
    return __dadd_rn(product_[q], __dmul_rn(a_.ridge, residual_[q]));
  }
  [[nodiscard]] __device__ static bool lowers(double step, double down, double curvature) {
    const double gain = __dsub_rn(__dmul_rn(2.0, down), __dmul_rn(step, curvature));
    return __dmul_rn(step, gain) > 0;
  }
  [[nodiscard]] __device__ static bool is_normal(float value) {
    const std::uint32_t exponent = std::bit_cast<std::uint32_t>(value) >> 23 & 0xFFU;
    return exponent != 0 && exponent != 0xFF;
  }

  // This lane's column goes a step.
  __device__ void leave(int q, double step) {
    residual_[q] = __dsub_rn(residual_[q], step);
    negated_[q] = -step;
  }
  // What the step of a column of the block does to the product.
  __device__ void follow(int column, double step) {
    if (step == 0) return;
    const double* row = block_ + column * a_.q.cols;
#pragma unroll
    for (int q = 0; q < kOfLane; ++q) {
      product_[q] = add_scaled(product_[q], -step, row[kWarpColumns * q + lane_]);
    }
  }

  template <int kOfGroup>
  [[nodiscard]] __device__ double sum_in_order(const double (&terms)[kOfGroup]) const {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kOfGroup; ++i) {
#pragma unroll 4
      for (int from = 0; from < kWarpColumns; ++from) {
        sum = __dadd_rn(sum, __shfl_sync(kWholeWarp, terms[i], from));
      }
    }
    return sum;
  }

  template <int kOfGroup>
  __device__ void improve_scale(int g) {
    const int first = kOfGroup * g;  // of a lane's columns
    double sums[kOfGroup];           // of codes * h, and the ridge
#pragma unroll
    for (int i = 0; i < kOfGroup; ++i) sums[i] = __dmul_rn(a_.ridge, codes_[first + i]);
#pragma unroll
    for (int k = 0; k < kOfGroup; ++k) {
#pragma unroll 1
      for (int from = 0; from < kWarpColumns; ++from) {
        const double code = __shfl_sync(kWholeWarp, codes_[first + k], from);
        const double* row = block_ + (kWarpColumns * (first + k) + from) * a_.q.cols;
#pragma unroll
        for (int i = 0; i < kOfGroup; ++i) {
          sums[i] = add_scaled(sums[i], row[kWarpColumns * (first + i) + lane_], code);
        }
      }
    }
    double slopes[kOfGroup];
#pragma unroll
    for (int i = 0; i < kOfGroup; ++i) {
      slopes[i] = __dmul_rn(codes_[first + i], slope(first + i));
      sums[i] = __dmul_rn(codes_[first + i], sums[i]);
    }
    const double along = sum_in_order(slopes);
    const double curvature = sum_in_order(sums);
    std::uint16_t& stored = a_.q.scales[first_scale_ + g];
    const double old = Int4Scale{stored}.value();
    const Int4Scale fitted =
        Int4Scale::nearest(static_cast<float>(__dadd_rn(old, __ddiv_rn(along, curvature))));
    const double step = __dsub_rn(static_cast<double>(fitted.value()), old);
    if (!is_normal(fitted.value()) || !lowers(step, along, curvature)) return;
    __syncwarp();  // all lanes have read the old one
    if (lane_ == 0) stored = fitted.bf16;
#pragma unroll
    for (int k = 0; k < kOfGroup; ++k) {
      const double own = __dmul_rn(step, codes_[first + k]);
      leave(first + k, own);
#pragma unroll 1
      for (int from = 0; from < kWarpColumns; ++from) {
        follow(kWarpColumns * (first + k) + from, __shfl_sync(kWholeWarp, own, from));
      }
    }
  }

  const DescendBlockArgs& a_;
  std::int64_t row_;
  int lane_;
  const double* block_;  // of h, the diagonal's
  std::int64_t first_scale_;
  double residual_[kOfLane], product_[kOfLane], negated_[kOfLane];
  int codes_[kOfLane];
};

__device__ inline void descend_row(const DescendBlockArgs& a, std::int64_t row, int lane) {
  RowDescent descent(a, row, lane);
  if (!a.fits_scales) {
    descent.improve_codes();
  } else if (a.q.group_size == 128) {
    descent.improve_scales<128 / kWarpColumns>();
  } else {
    descent.improve_scales<64 / kWarpColumns>();
  }
  descent.store();
}

// ---- dot products ---------------------------------------------------------------------------------

__device__ inline void dot_row(const RowDotsArgs& a, std::int64_t row, int lane) {
  const std::int64_t first = row * a.cols;
  double sum = 0;
#pragma unroll 1
  for (std::int64_t c = 0; c < a.cols; c += kWarpColumns) {
    const double term = __dmul_rn(a.a[first + c + lane], a.b[first + c + lane]);
#pragma unroll
    for (int from = 0; from < kWarpColumns; ++from) {
      sum = __dadd_rn(sum, __shfl_sync(kWholeWarp, term, from));
    }
  }
  if (lane == 0) a.out[row] = sum;
}

}  // namespace fut::cuda
