// kernels/cuda/ptx/multicast_copy.cuh for the emulator: the copies arrive one by one.
#pragma once

#include "tests/emulator/device.h"

namespace fut::cuda::ptx {

inline void bulk_copy_to_blocks(std::uint32_t destination, const void* source, std::uint32_t bytes,
                                std::uint32_t barrier, std::uint16_t blocks) {
  for (std::uint32_t rank = 0; blocks >> rank != 0; ++rank) {
    if ((blocks >> rank & 1) == 0) continue;
    emulator::bulk_copy_to(emulator::address_in_block(destination, rank), source, bytes,
                           emulator::address_in_block(barrier, rank));
  }
}

}  // namespace fut::cuda::ptx
