// kernels/cuda/ptx/tensor_copy.cuh for the emulator.
#pragma once

#include "kernels/layout/prompt_tile.h"
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
// The box at c0 of the innermost dimension and block c4 of 32 rows.
inline void copy_box_5(std::uint32_t destination, const CUtensorMap& map, std::uint32_t barrier,
                       int c0, int c4) {
  if (!map.spread) emulator::fail("five dimensions of a tensor of two");
  emulator::copy_box(destination, map, {c0, layout::kSpreadRows * c4, 0}, barrier);
}

// To several blocks: the copies arrive one by one.
inline void copy_to_blocks(std::uint32_t destination, const CUtensorMap& map, std::uint32_t barrier,
                           int c0, int row, std::uint16_t blocks) {
  for (std::uint32_t rank = 0; blocks >> rank != 0; ++rank) {
    if ((blocks >> rank & 1) == 0) continue;
    emulator::copy_box_to(emulator::address_in_block(destination, rank), map, {c0, row, 0},
                          emulator::address_in_block(barrier, rank));
  }
}
inline void copy_box(std::uint32_t destination, const CUtensorMap& map, std::uint32_t barrier,
                     int c0, int c1, std::uint16_t blocks) {
  copy_to_blocks(destination, map, barrier, c0, c1, blocks);
}
inline void copy_box_5(std::uint32_t destination, const CUtensorMap& map, std::uint32_t barrier,
                       int c0, int c4, std::uint16_t blocks) {
  copy_to_blocks(destination, map, barrier, c0, layout::kSpreadRows * c4, blocks);
}

}  // namespace fut::cuda::ptx
