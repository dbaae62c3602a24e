// kernels/cuda/ptx/wgmma.cuh for the emulator: BF16 operands, each lane by itself. Where an element of an
// operand lies is PTX ISA's "canonical layouts", in the swizzle of 128 bytes.
#pragma once

#include <array>
#include <cstring>

#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/numeric/e4m3.h"

namespace fut::cuda::ptx {

struct Bf16Operands {};
struct E4m3Operands {};

inline std::uint64_t wgmma_descriptor(std::uint32_t address) {
  if (address % 1024 != 0) emulator::fail("an operand that stands askew");
  return address >> 4 | std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
}

inline void wgmma_fence() {
  emulator::begin_warpgroup_products();
}
inline void wgmma_commit() {
  emulator::end_group();
}
template <int kPending>
void wgmma_wait() {
  emulator::wait_for_groups(kPending);
}
template <class Registers>
void hold_registers(Registers&) {}

// Where element (row, k) is of an operand of 16-bit numbers whose rows lie along `k`, or (kAlongRows) along
// the rows.
template <bool kAlongRows>
std::uint32_t wgmma_place(std::uint64_t descriptor, int row, int k) {
  const auto field = [&](int bit) { return static_cast<int>(descriptor >> bit & 0x3FFFU) << 4; };
  int address = field(0);
  if (kAlongRows) {
    address += row % 64 * 2 + row / 64 * field(16) + k % 8 * 128 + k / 8 * field(32);
  } else {
    address += row % 8 * 128 + row / 8 * field(32) + k * 2;
  }
  return static_cast<std::uint32_t>(address ^ (address >> 7 & 7) << 4);
}
template <bool kAlongRows>
float wgmma_element(std::uint64_t descriptor, int row, int k) {
  std::uint16_t bits = 0;
  const std::uint32_t place = wgmma_place<kAlongRows>(descriptor, row, k);
  std::memcpy(&bits, emulator::own_memory(place, 2, 2), 2);
  return bf16_to_f32(bits);
}

// A lane's share of d (+)= a b: rows g and g + 8 of `a`, as many columns as d has numbers for.
template <bool kAlongColumns>
void multiply_rows(float* d, int count, const std::array<std::array<float, 16>, 2>& a,
                   std::uint64_t b, int t, bool accumulate) {
  for (int i = 0; i < count / 2; ++i) {
    std::array<float, 16> column;
    for (int k = 0; k < 16; ++k) {
      column[static_cast<std::size_t>(k)] =
          wgmma_element<kAlongColumns>(b, i / 2 * 8 + 2 * t + i % 2, k);
    }
    for (int r = 0; r < 2; ++r) {
      float& sum = d[i / 2 * 4 + 2 * r + i % 2];
      if (!accumulate) sum = 0;
      for (std::size_t k = 0; k < 16; ++k) sum += a[static_cast<std::size_t>(r)][k] * column[k];
    }
  }
}

template <int kCount>
void wgmma(Bf16Operands, float (&d)[kCount], std::uint64_t a, std::uint64_t b, int accumulate) {
  float* sums = d;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  emulator::ask_for_product([=] {
    std::array<std::array<float, 16>, 2> rows;
    for (int r = 0; r < 2; ++r) {
      for (int k = 0; k < 16; ++k) {
        rows[static_cast<std::size_t>(r)][static_cast<std::size_t>(k)] =
            wgmma_element<false>(a, thread / 32 * 16 + thread % 32 / 4 + 8 * r, k);
      }
    }
    multiply_rows<false>(sums, kCount, rows, b, thread % 4, accumulate != 0);
  });
}
// Steps of 32 numbers of one byte.
inline std::array<float, 32> wgmma_e4m3_row(std::uint64_t descriptor, int row) {
  std::array<float, 32> numbers;
  for (int k = 0; k < 32; k += 16) {
    const std::uint8_t* place =
        emulator::own_memory(wgmma_place<false>(descriptor, row, k / 2), 16, 16);
    for (int i = 0; i < 16; ++i) numbers[static_cast<std::size_t>(k + i)] = e4m3_to_f32(place[i]);
  }
  return numbers;
}
template <int kCount>
void wgmma(E4m3Operands, float (&d)[kCount], std::uint64_t a, std::uint64_t b, int accumulate) {
  float* sums = d;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  emulator::ask_for_product([=] {
    const int token = thread / 32 * 16 + thread % 32 / 4;
    const std::array<std::array<float, 32>, 2> tokens = {wgmma_e4m3_row(a, token),
                                                         wgmma_e4m3_row(a, token + 8)};
    for (int column = 0; column < kCount / 2; ++column) {
      const auto row = wgmma_e4m3_row(b, column / 2 * 8 + thread % 4 * 2 + column % 2);
      for (std::size_t half = 0; half < 2; ++half) {
        float& sum = sums[column / 2 * 4 + static_cast<int>(half) * 2 + column % 2];
        if (accumulate == 0) sum = 0;
        for (std::size_t k = 0; k < 32; ++k) sum += tokens[half][k] * row[k];
      }
    }
  });
}

}  // namespace fut::cuda::ptx
