// The words of CUDA C++ that the emulated kernels use, as C++ and calls of the emulator.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "tests/emulator/cluster.h"

#define __device__
#define __global__
#define __shared__
#define __grid_constant__
#define __align__(bytes)
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))

namespace fut::cuda {

struct Dimensions {
  std::uint32_t x = 0;
};
// Of the thread that runs: the emulator sets them whenever another one takes over.
extern Dimensions threadIdx, blockIdx, blockDim, gridDim;

struct alignas(8) uint2 {
  std::uint32_t x, y;
};
struct alignas(16) uint4 {
  std::uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline uint2 make_uint2(std::uint32_t x, std::uint32_t y) {
  return {x, y};
}

inline float __uint_as_float(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline int min(int a, int b) {
  return a < b ? a : b;
}
inline int max(int a, int b) {
  return a > b ? a : b;
}

inline void __syncwarp() {
  emulator::sync_warp();
}
inline float __shfl_xor_sync(std::uint32_t lanes, float value, int distance) {
  if (lanes != 0xFFFFFFFFU) emulator::fail("a shuffle of some lanes of a warp");
  return emulator::shuffle_xor(value, distance);
}
inline void __syncthreads() {
  emulator::sync_block(0, false);
}
inline int __syncthreads_or(int value) {
  return emulator::sync_block(value, true);
}

}  // namespace fut::cuda
