// kernels/cuda/ptx/int4_wgmma.cuh for the emulator: each warp of a warpgroup by itself, for none has to do
// with the others' rows.
#pragma once

#include <cstring>

#include "kernels/cuda/ptx/wgmma.cuh"

namespace fut::cuda::ptx {

inline constexpr int kSwizzledColumns = 64;
// 16-byte pieces of a row are exchanged by the row's number.
inline int swizzled_offset(int token, int k) {
  return token * 128 + (k / 8 ^ token % 8) * 16 + k % 8 * 2;
}

// Operands are read when the product is done, registers and shared memory alike: who writes to them before has
// another product.
template <int kTiles, int kSteps>
void ask_for_chain(float (&c)[kTiles][4], std::uint32_t (&a)[kSteps][4], std::uint64_t b) {
  emulator::ask_for_product([b, sums = &c[0], operand = &a[0]] {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint32_t columns[kSteps * kTiles][2];
    for (int k = 0; k < kSteps; ++k) {
      const std::uint64_t block = b + k / 4 * (8 * kTiles * 128 >> 4) + k % 4 * (32 >> 4);
      for (int n = 0; n < kTiles; ++n) {
        for (int half = 0; half < 2; ++half) {
          const auto place = wgmma_place<false>(block, 8 * n + lane / 4, lane % 4 * 2 + 8 * half);
          std::memcpy(&columns[k * kTiles + n][half], emulator::own_memory(place, 4, 4), 4);
        }
      }
    }
    emulator::multiply({sums, operand, columns, kTiles, kSteps});
  });
}

template <int kTiles, int kChains, int kBlocks>
void multiply_chains(float (&c)[kChains][kTiles][4], std::uint32_t (&a)[kChains][4 * kBlocks][4],
                     const std::uint64_t (&b)[kChains]) {
  wgmma_fence();
  for (int i = 0; i < kChains; ++i) ask_for_chain(c[i], a[i], b[i]);
  wgmma_commit();
  wgmma_wait<0>();
}

template <int kTiles, int kBlocks>
void multiply_warpgroup(float (&c)[kTiles][4], std::uint32_t (&a)[4 * kBlocks][4],
                        std::uint64_t b) {
  wgmma_fence();
  ask_for_chain(c, a, b);
  wgmma_commit();
  wgmma_wait<0>();
}

}  // namespace fut::cuda::ptx
