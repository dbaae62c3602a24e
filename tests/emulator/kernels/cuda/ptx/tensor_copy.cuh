// kernels/cuda/ptx/tensor_copy.cuh for the emulator.
#pragma once

#include "tests/emulator/device.h"

using CUtensorMap = fut::emulator::Tensor;

namespace fut::cuda::ptx {

inline void prefetch_map(const CUtensorMap&) {}

inline void copy_box_3(std::uint32_t destination, const CUtensorMap& map, std::uint32_t barrier,
                       int c0, int c1, int c2, std::uint64_t = 0) {
  emulator::copy_box(destination, map, {c0, c1, c2}, barrier);
}
inline void copy_box(std::uint32_t destination, const CUtensorMap& map, std::uint32_t barrier,
                     int c0, int c1, std::uint64_t = 0) {
  emulator::copy_box(destination, map, {c0, c1, 0}, barrier);
}

}  // namespace fut::cuda::ptx
