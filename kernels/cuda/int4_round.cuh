// One group of weights rounded to INT4: the search for its scale and its codes, operation by operation as
// quantize_group of loader/int4_grid.cpp has them, so that no bit differs. Nothing is fused.
//
// work     Eight neighbouring lanes share a group: weight i of lane l is number l + 8 i, so that a lane's sum
//          is one of the eight sums of the reference's vectors. What the reference adds weight by weight in
//          float64 goes round the eight lanes.
// bound    arithmetic: a division and some 15 operations for each weight and candidate
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/numeric/int4_code.h"
#include "kernels/numeric/int4_search.h"
#include "kernels/ops_offline.h"

namespace fut::cuda {

inline constexpr int kGroupLanes = 8;  // of a group

template <int kPerLane>
class Int4GroupRounder {
 public:
  static constexpr int kSize = kPerLane * kGroupLanes;

  // `importance` of the group's columns, or null. All lanes of a warp make theirs together.
  __device__ Int4GroupRounder(const float* weights, const float* importance, int lane)
      : importance_(importance),
        first_(lane / kGroupLanes * kGroupLanes),
        own_(lane % kGroupLanes) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) weights_[i] = weights[own_ + kGroupLanes * i];
    find_largest();
  }

  // Of this lane's weights, the first that no scale can serve; kPerLane: none.
  [[nodiscard]] __device__ int first_bad() const {
    int bad = kPerLane;
#pragma unroll
    for (int i = kPerLane - 1; i >= 0; --i) {
      if (!(fabsf(weights_[i]) < kTooLargeInt4Weight)) bad = i;
    }
    return bad;
  }

  // All lanes of the warp together.
  __device__ void round(bool searched) {
    double best_error = 0;
    bool open = true;
    const int attempts = searched ? 2 + kScaleRefits : 1;
#pragma unroll 1
    for (int attempt = 0; attempt < attempts; ++attempt) {
      float wanted = __fdiv_rn(-largest_, 8.0F);
      if (attempt == 1) wanted = search();
      if (attempt > 1) wanted = refitted();
      const Int4Scale scale = Int4Scale::nearest(wanted);
      std::uint64_t codes = 0;
      const double error = error_of(scale, codes);
      const bool is_refit = attempt > 1;
      const bool better =
          attempt == 0 || (error < best_error && open && (!is_refit || is_normal(wanted)));
      if (is_refit && !better) open = false;
      if (!better) continue;
      best_error = error;
      scale_ = scale;
      codes_ = codes;
    }
    if (!(fabsf(largest_) < kSmallestInt4Weight)) return;
    scale_ = {};
    codes_ = zero_codes();
  }

  [[nodiscard]] __device__ std::uint16_t scale() const {
    return scale_.bf16;
  }
  // Of this lane's weight i.
  [[nodiscard]] __device__ std::int8_t code(int i) const {
    return static_cast<std::int8_t>(code_in(codes_, i));
  }
  [[nodiscard]] __device__ int own() const {
    return own_;
  }

 private:
  static constexpr unsigned kAllLanes = 0xFFFFFFFFU;

  [[nodiscard]] __device__ static int code_in(std::uint64_t codes, int i) {
    return static_cast<int>(codes >> (4 * i) & 0xFU) + kInt4Min;
  }
  [[nodiscard]] __device__ static std::uint64_t code_bits(int code, int i) {
    return static_cast<std::uint64_t>(code - kInt4Min) << (4 * i);
  }
  [[nodiscard]] __device__ static std::uint64_t zero_codes() {
    std::uint64_t codes = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) codes |= code_bits(0, i);
    return codes;
  }
  [[nodiscard]] __device__ static bool is_normal(float value) {
    const std::uint32_t exponent = std::bit_cast<std::uint32_t>(value) >> 23 & 0xFFU;
    return exponent != 0 && exponent != 0xFF;
  }

  // The weight of largest size, the first of equals, and the largest importance.
  __device__ void find_largest() {
    float size = 0, top = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      size = fmaxf(size, fabsf(weights_[i]));
      if (importance_ != nullptr) top = fmaxf(top, importance_[own_ + kGroupLanes * i]);
    }
#pragma unroll
    for (int distance = kGroupLanes / 2; distance >= 1; distance /= 2) {
      size = fmaxf(size, __shfl_xor_sync(kAllLanes, size, distance));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, distance));
    }
    int place = 2 * kSize;  // twice the number of the weight, and one more where it is negative
#pragma unroll
    for (int i = kPerLane - 1; i >= 0; --i) {
      if (fabsf(weights_[i]) == size) {
        place = 2 * (own_ + kGroupLanes * i) + (weights_[i] < 0 ? 1 : 0);
      }
    }
#pragma unroll
    for (int distance = kGroupLanes / 2; distance >= 1; distance /= 2) {
      place = min(place, __shfl_xor_sync(kAllLanes, place, distance));
    }
    largest_ = place % 2 == 1 ? -size : size;
    top_ = top;
  }

  [[nodiscard]] __device__ float importance(int i) const {
    return importance_[own_ + kGroupLanes * i];
  }
  [[nodiscard]] __device__ double importance_in_sums(int i) const {
    return top_ > 0 ? static_cast<double>(importance(i)) : 1.0;
  }

  // The sum over the group's terms in the order of weights.
  [[nodiscard]] __device__ double sum_in_order(const double (&terms)[kPerLane]) const {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
#pragma unroll
      for (int l = 0; l < kGroupLanes; ++l) {
        sum = __dadd_rn(sum, __shfl_sync(kAllLanes, terms[i], first_ + l));
      }
    }
    return sum;
  }
  [[nodiscard]] __device__ float sum_of_lanes_in_order(float own) const {
    float sum = 0;
#pragma unroll
    for (int l = 0; l < kGroupLanes; ++l) {
      sum = __fadd_rn(sum, __shfl_sync(kAllLanes, own, first_ + l));
    }
    return sum;
  }

  [[nodiscard]] __device__ double error_of(Int4Scale scale, std::uint64_t& codes) const {
    double terms[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int code = encode_int4(weights_[i], scale);
      codes |= code_bits(code, i);
      const double error = __dsub_rn(static_cast<double>(weights_[i]),
                                     static_cast<double>(decode_int4(code, scale)));
      terms[i] = __dmul_rn(importance_in_sums(i), __dmul_rn(error, error));
    }
    return sum_in_order(terms);
  }

  // The scale that fits the best codes by least squares.
  [[nodiscard]] __device__ float refitted() const {
    double terms[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const double weighted = __dmul_rn(importance_in_sums(i), code_in(codes_, i));
      terms[i] = __dmul_rn(weighted, static_cast<double>(weights_[i]));
    }
    const double numerator = sum_in_order(terms);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const double code = code_in(codes_, i);
      terms[i] = __dmul_rn(__dmul_rn(importance_in_sums(i), code), code);
    }
    const double denominator = sum_in_order(terms);
    return denominator > 0 ? static_cast<float>(__ddiv_rn(numerator, denominator)) : 0.0F;
  }

  // The candidates; see int4_grid.h.
  [[nodiscard]] __device__ float search() const {
    const float size = fabsf(largest_);
    const std::uint32_t exponent = std::bit_cast<std::uint32_t>(size) >> 23;
    const float power_of_two = std::bit_cast<float>((254U - exponent) << 23);  // 2^-ilogb(size)
    float weights[kPerLane], importances[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      weights[i] = __fmul_rn(weights_[i], power_of_two);
      importances[i] = top_ > 0 ? __fdiv_rn(importance(i), top_) : 1.0F;
    }
    float best_error = __builtin_huge_valf(), best = 0;
#pragma unroll 1
    for (int percent = kFirstScalePercent; percent >= kLastScalePercent; --percent) {
      const float share = __fdiv_rn(static_cast<float>(percent), 100.0F);
      const float scale =
          Int4Scale::nearest(__fdiv_rn(__fmul_rn(__fmul_rn(size, power_of_two), share), 8.0F))
              .value();
      float plus = 0, minus = 0;
      add_pair_errors(weights, importances, scale, plus, minus);
      plus = sum_of_lanes_in_order(plus);
      minus = sum_of_lanes_in_order(minus);
      if (plus < best_error) {
        best_error = plus;
        best = scale;
      }
      if (minus < best_error) {
        best_error = minus;
        best = -scale;
      }
    }
    return __fdiv_rn(best, power_of_two);
  }

  __device__ static void add_pair_errors(const float (&weights)[kPerLane],
                                         const float (&importances)[kPerLane], float scale,
                                         float& plus, float& minus) {
    constexpr float kRounder = 0x1.8p23F;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      float code = __fdiv_rn(weights[i], scale);
      code = code < 8.0F ? code : 8.0F;
      code = code > -8.0F ? code : -8.0F;
      code = __fsub_rn(__fadd_rn(code, kRounder), kRounder);
      const float error = __fsub_rn(weights[i], __fmul_rn(code, scale));
      const float plus_error = __fadd_rn(error, code == 8.0F ? scale : 0.0F);
      const float minus_error = __fsub_rn(error, code == -8.0F ? scale : 0.0F);
      plus = __fadd_rn(plus, __fmul_rn(importances[i], __fmul_rn(plus_error, plus_error)));
      minus = __fadd_rn(minus, __fmul_rn(importances[i], __fmul_rn(minus_error, minus_error)));
    }
  }

  float weights_[kPerLane];
  const float* importance_;
  int first_, own_;  // the group's first lane in the warp; this lane in the group
  float largest_ = 0, top_ = 0;
  Int4Scale scale_;
  std::uint64_t codes_ = 0;  // four bits each, code + 8
};

// Group `index` of the matrix, row by row, by eight lanes. One that does not exist is the last one's and is
// not stored.
template <int kPerLane>
__device__ void round_group(const RoundToInt4Args& a, std::int64_t index, int lane) {
  constexpr int kSize = kPerLane * kGroupLanes;
  const std::int64_t groups_of_row = a.w.cols / kSize;
  const std::int64_t num_groups = a.w.rows * groups_of_row;
  const bool exists = index < num_groups;
  const std::int64_t group = exists ? index : num_groups - 1;
  const std::int64_t first = group * kSize;
  const float* importance =
      a.importance == nullptr ? nullptr : a.importance + group % groups_of_row * kSize;
  Int4GroupRounder<kPerLane> rounder(a.w.data + first, importance, lane);
  rounder.round(a.searched);
  if (!exists) return;
  if (const int bad = rounder.first_bad(); bad < kPerLane) {
    atomicMin(reinterpret_cast<unsigned long long*>(a.first_bad),
              static_cast<unsigned long long>(first + rounder.own() + kGroupLanes * bad));
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    a.codes[first + rounder.own() + kGroupLanes * i] = rounder.code(i);
  if (rounder.own() == 0) a.scales[group] = rounder.scale();
}

}  // namespace fut::cuda
