// kernels/cuda/ptx/attention_wgmma.cuh for the emulator. Registers of operand A are read when the product is
// done: who writes to them before has another product.
#pragma once

#include "kernels/cuda/ptx/wgmma.cuh"

namespace fut::cuda::ptx {

inline std::uint64_t wgmma_rows_descriptor(std::uint32_t address, std::uint32_t bytes_to_next_64) {
  return wgmma_descriptor(address) | static_cast<std::uint64_t>(bytes_to_next_64 >> 4) << 16;
}
inline constexpr std::uint64_t kSixteenRows = 16 * 128 >> 4;

template <int kCount>
void wgmma_rows(float (&d)[kCount], const std::uint32_t (&a)[4], std::uint64_t b) {
  float* sums = d;
  const std::uint32_t* fragment = a;
  emulator::ask_for_product([=] {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::array<std::array<float, 16>, 2> rows;
    for (int t = 0; t < 4; ++t) {
      for (int i = 0; i < 4; ++i) {  // register i: row 8 * (i % 2), columns from 8 * (i / 2) on
        const std::uint32_t pair = emulator::exchange(fragment[i], lane / 4 * 4 + t);
        auto& row = rows[static_cast<std::size_t>(i % 2)];
        const auto k = static_cast<std::size_t>(2 * t + i / 2 * 8);
        row[k] = bf16_to_f32(static_cast<std::uint16_t>(pair));
        row[k + 1] = bf16_to_f32(static_cast<std::uint16_t>(pair >> 16));
      }
    }
    multiply_rows<true>(sums, kCount, rows, b, lane % 4, true);
  });
}

}  // namespace fut::cuda::ptx
