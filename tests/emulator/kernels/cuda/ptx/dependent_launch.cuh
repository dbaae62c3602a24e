// kernels/cuda/ptx/dependent_launch.cuh for the emulator.
#pragma once

#include "tests/emulator/device.h"

namespace fut::cuda::ptx {

inline void take_turn() {
  emulator::take_turn();
}

}  // namespace fut::cuda::ptx
