// Reading memory and nothing else: what kernels that are bound by memory are measured against. Includes no
// CUDA header.
#pragma once

#include "kernels/cuda/launch_context.h"

namespace fut::cuda {

// Reads `bytes` (a multiple of 16) from a 16-byte aligned place once; `sink` gets what no compiler may
// leave out.
void read_all(const void* data, std::size_t bytes, std::uint32_t* sink, LaunchContext& context);

}  // namespace fut::cuda
