// sample on the GPU: the order of the candidates as integers, and their weights as integers.
//
// A logit's key is a 32-bit number that orders like the logit. A candidate's code is key and id in one
// number, so that a larger code is what comes first: the larger logit, of equal ones the lower id.
// Weights are exp() in float64, rounded to a fixed point: sums of integers are the same in every order.
// One weight is off by half a unit of 2^-bits of the largest, so a border of V candidates by at most
// V / 2^(bits+1) of it; bits is 46 at a vocabulary of 128,256.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace fut::cuda {

// Of a logit that is a number; both zeros have the same.
__device__ __forceinline__ std::uint32_t key_of(float logit) {
  const std::uint32_t bits = __float_as_uint(logit == 0 ? 0.0F : logit);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ __forceinline__ float logit_of(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key ^ 0x80000000U : ~key);
}

struct CodeOrder {
  int id_bits;  // that hold any id

  __device__ std::uint32_t id_mask() const { return (1U << id_bits) - 1; }
  __device__ std::uint64_t code(std::uint32_t key, std::uint32_t id) const {
    return (static_cast<std::uint64_t>(key) << id_bits) | (id_mask() - id);
  }
  __device__ std::uint32_t key(std::uint64_t code) const {
    return static_cast<std::uint32_t>(code >> id_bits);
  }
  __device__ std::int32_t id(std::uint64_t code) const {
    return static_cast<std::int32_t>(id_mask() - (static_cast<std::uint32_t>(code) & id_mask()));
  }
};

// The bits below the point with which the weights of a whole vocabulary fit into 64.
[[nodiscard]] constexpr int weight_bits_for(int id_bits) {
  constexpr int kMost = 51;  // below the unit of kRounder
  return 63 - id_bits < kMost ? 63 - id_bits : kMost;
}

// What a stage sums up over the candidates: their number, or their weights at a temperature.
struct Measure {
  double best;                 // the largest logit
  double inverse_temperature;  // 0: a candidate counts 1
  int bits;                    // below the point of a weight

  __device__ __forceinline__ bool counts() const { return inverse_temperature == 0; }
  __device__ __forceinline__ std::uint64_t weight(float logit) const {
    const double share = exp((static_cast<double>(logit) - best) * inverse_temperature);
    // Added to it, a number up to 2^51 is rounded to an integer, which the lower bits hold.
    constexpr double kRounder = 0x1p52;
    const double unit = __hiloint2double((1023 + bits) << 20, 0);  // 2^bits
    const auto rounded =
        static_cast<std::uint64_t>(__double_as_longlong(fma(share, unit, kRounder)));
    return rounded & ((1ULL << 52) - 1);
  }
  __device__ __forceinline__ std::uint64_t of(float logit) const {
    return counts() ? 1 : weight(logit);
  }
  // All smaller logits have weight 0.
  __device__ __forceinline__ float least_logit() const {
    constexpr double kNothing = 37;  // e^-37 is below half a unit, whatever the bits
    return __double2float_rd(best - kNothing / inverse_temperature);
  }
};

}  // namespace fut::cuda
