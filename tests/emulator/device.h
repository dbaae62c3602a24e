// The words of CUDA C++ that the emulated kernels use, as C++ and calls of the emulator.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

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
  std::uint32_t x = 0, y = 0;
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
inline uint4 make_uint4(std::uint32_t x, std::uint32_t y, std::uint32_t z, std::uint32_t w) {
  return {x, y, z, w};
}
inline uint2 make_uint2(std::uint32_t x, std::uint32_t y) {
  return {x, y};
}

inline float __uint_as_float(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline std::uint32_t __float_as_uint(float v) {
  return std::bit_cast<std::uint32_t>(v);
}
inline int min(int a, int b) {
  return a < b ? a : b;
}
inline int max(int a, int b) {
  return a > b ? a : b;
}

template <class T>
T __ldg(const T* place) {
  return *place;
}
template <class T>
T __ldcs(const T* place) {
  return *place;
}

inline void __syncwarp() {
  emulator::sync_warp();
}
// What lane `from` has, of 32 or 64 bits.
template <class T>
T shuffled(std::uint32_t lanes, T value, int from) {
  if (lanes != 0xFFFFFFFFU) emulator::fail("a shuffle of some lanes of a warp");
  if constexpr (sizeof(T) == 8) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    const std::uint64_t low = emulator::exchange(static_cast<std::uint32_t>(bits), from);
    const std::uint64_t high = emulator::exchange(static_cast<std::uint32_t>(bits >> 32), from);
    return std::bit_cast<T>(low | high << 32);
  } else {
    return std::bit_cast<T>(emulator::exchange(std::bit_cast<std::uint32_t>(value), from));
  }
}
template <class T>
T __shfl_xor_sync(std::uint32_t lanes, T value, int distance) {
  return shuffled(lanes, value, static_cast<int>(threadIdx.x) % 32 ^ distance);
}
template <class T>
T __shfl_sync(std::uint32_t lanes, T value, int from) {
  return shuffled(lanes, value, from);
}
template <class T>
T __shfl_up_sync(std::uint32_t lanes, T value, int distance) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return shuffled(lanes, value, lane < distance ? lane : lane - distance);
}
inline std::uint32_t __ballot_sync(std::uint32_t lanes, bool value) {
  std::uint32_t all = 0;
  for (int from = 0; from < 32; ++from) {
    all |= shuffled(lanes, std::uint32_t{value}, from) << from;
  }
  return all;
}
inline bool __any_sync(std::uint32_t lanes, bool value) {
  return __ballot_sync(lanes, value) != 0;
}
inline std::uint32_t __reduce_max_sync(std::uint32_t lanes, std::uint32_t value) {
  std::uint32_t largest = 0;
  for (int from = 0; from < 32; ++from) {
    const std::uint32_t other = shuffled(lanes, value, from);
    largest = other > largest ? other : largest;
  }
  return largest;
}
inline std::uint32_t __reduce_add_sync(std::uint32_t lanes, std::uint32_t value) {
  std::uint32_t sum = 0;
  for (int from = 0; from < 32; ++from) sum += shuffled(lanes, value, from);
  return sum;
}

// One thread runs at a time.
template <class T>
T atomicAdd(T* place, std::type_identity_t<T> value) {
  const T before = *place;
  *place += value;
  return before;
}

template <class T>
T atomicMin(T* place, std::type_identity_t<T> value) {
  const T before = *place;
  *place = value < before ? value : before;
  return before;
}

inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline double __dmul_rn(double a, double b) {
  return a * b;
}
inline double __dadd_rn(double a, double b) {
  return a + b;
}
inline double __dsub_rn(double a, double b) {
  return a - b;
}
inline double __ddiv_rn(double a, double b) {
  return a / b;
}
inline int __ffs(int bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<std::uint32_t>(bits)) + 1;
}
inline std::uint32_t __byte_perm(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
  const std::uint64_t bytes = low | static_cast<std::uint64_t>(high) << 32;
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t from = selector >> 4 * i & 7U;
    result |= static_cast<std::uint32_t>(bytes >> 8 * from & 0xFFU) << 8 * i;
  }
  return result;
}

inline void __syncthreads() {
  emulator::sync_block(0, false);
}
inline int __syncthreads_or(int value) {
  return emulator::sync_block(value, true);
}

}  // namespace fut::cuda
