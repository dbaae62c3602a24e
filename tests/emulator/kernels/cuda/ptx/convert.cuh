// kernels/cuda/ptx/convert.cuh for the emulator.
#pragma once

#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/formats.h"
#include "tests/emulator/device.h"

namespace fut::cuda::ptx {

inline std::uint32_t f16x2(float low, float high) {
  return f32_to_f16(low) | static_cast<std::uint32_t>(f32_to_f16(high)) << 16;
}
inline std::uint32_t bf16x2(float low, float high) {
  return f32_to_bf16(low) | static_cast<std::uint32_t>(f32_to_bf16(high)) << 16;
}
inline std::uint16_t e4m3x2(float low, float high) {
  return static_cast<std::uint16_t>(f32_to_e4m3(low) | f32_to_e4m3(high) << 8);
}
inline std::uint32_t f16x2_saturating(float low, float high) {
  return f32_to_f16_saturating(low) | static_cast<std::uint32_t>(f32_to_f16_saturating(high)) << 16;
}

}  // namespace fut::cuda::ptx
