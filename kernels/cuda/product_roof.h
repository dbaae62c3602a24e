// Multiplying E4M3 numbers and nothing else: what products of prompts are measured against. Includes no
// CUDA header.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch_context.h"

namespace fut::cuda {

// Multiplies on every multiprocessor for so many rounds; returns how many operations that are. `sink` gets
// what no compiler may leave out.
double multiply_only(int rounds, float* sink, LaunchContext& context);

}  // namespace fut::cuda
