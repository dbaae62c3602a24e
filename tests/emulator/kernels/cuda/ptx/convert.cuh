// kernels/cuda/ptx/convert.cuh for the emulator.
#pragma once

#include "kernels/numeric/formats.h"
#include "tests/emulator/device.h"

namespace fut::cuda::ptx {

inline std::uint32_t f16x2_saturating(float low, float high) {
  return f32_to_f16_saturating(low) | static_cast<std::uint32_t>(f32_to_f16_saturating(high)) << 16;
}

}  // namespace fut::cuda::ptx
