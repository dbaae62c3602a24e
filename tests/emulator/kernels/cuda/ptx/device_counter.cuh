// kernels/cuda/ptx/device_counter.cuh for the emulator: one thread runs at a time.
#pragma once

#include "tests/emulator/device.h"

namespace fut::cuda::ptx {

inline unsigned arrive(unsigned* counter, unsigned last) {
  const unsigned before = *counter;
  *counter = before >= last ? 0 : before + 1;
  return before;
}

}  // namespace fut::cuda::ptx
