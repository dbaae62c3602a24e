// kernels/cuda/ptx/tensor_copy.cuh for the emulator: boxes of one size, which lie ready, swizzled and filled
// up, as a test has laid them out.
#pragma once

#include <cstring>

#include "tests/emulator/device.h"

struct CUtensorMap {
  const std::uint8_t* boxes = nullptr;  // [row of boxes][column of boxes]
  int box_rows = 0, box_cols = 0;
  int row_step = 0;  // rows from one box to the next one below
  int boxes_across = 0, boxes_down = 0;
};

namespace fut::cuda::ptx {

inline void prefetch_map(const CUtensorMap&) {}

inline void copy_box(std::uint32_t destination, const CUtensorMap& map, std::uint32_t barrier,
                     int c0, int c1, std::uint64_t) {
  const int column = c0 / map.box_cols;
  const int row = c1 / map.row_step;
  if (c0 % map.box_cols != 0 || c1 % map.row_step != 0 || c0 < 0 || c1 < 0 ||
      column >= map.boxes_across || row >= map.boxes_down) {
    emulator::fail("no box at this place");
  }
  const int bytes = map.box_rows * map.box_cols;
  // Whoever still reads the place, or already, gets NaN.
  std::memset(emulator::own_memory(destination, bytes, 128), 0xFF, static_cast<std::size_t>(bytes));
  emulator::bulk_copy(
      destination, map.boxes + static_cast<std::ptrdiff_t>(row * map.boxes_across + column) * bytes,
      static_cast<std::uint32_t>(bytes), barrier);
}

}  // namespace fut::cuda::ptx
