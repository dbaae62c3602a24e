// The ops of whole layers on the GPU: one kernel for those of a decode step in INT4, where it takes them; else
// op by op. Includes no CUDA header.
#pragma once

#include <span>

#include "kernels/cuda/decode_layers_plan.h"
#include "kernels/cuda/launch_context.h"

namespace fut::cuda {

// How many of the layers from the first on were launched as one kernel; 0: it does not take them.
[[nodiscard]] std::size_t try_decode_layers(std::span<const LayerArgs> layers,
                                            LaunchContext& context);

// The kernel itself: what decode_layers_args() made.
void launch_decode_layers(const DecodeLayersShape& shape, DecodeLayersArgs args,
                          LaunchContext& context);

}  // namespace fut::cuda
