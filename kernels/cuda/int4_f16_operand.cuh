// Operand B of INT4 projections where tokens are F16 already.
#pragma once

#include <cstdint>

namespace fut::cuda {

struct F16Operand {
  static constexpr bool kNormalised = false;
  const std::uint16_t* x;
  std::int64_t stride;

  // Columns k .. k + 3 of a token.
  __device__ uint2 load(int token, int k, float&) const {
    return *reinterpret_cast<const uint2*>(x + token * stride + k);
  }
};

}  // namespace fut::cuda
