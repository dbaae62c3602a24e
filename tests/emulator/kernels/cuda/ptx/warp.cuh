// kernels/cuda/ptx/warp.cuh for the emulator.
#pragma once

#include "tests/emulator/device.h"

namespace fut::cuda::ptx {

inline int lane() {
  return static_cast<int>(threadIdx.x % 32);
}
inline int warp_index() {
  return static_cast<int>(threadIdx.x / 32);
}

}  // namespace fut::cuda::ptx
