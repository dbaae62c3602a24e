// kernels/cuda/ptx/prefetch.cuh for the emulator.
#pragma once

namespace fut::cuda::ptx {

inline void prefetch(const void*) {}

}  // namespace fut::cuda::ptx
