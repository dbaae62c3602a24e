// Tokens of a batch as the INT4 main loop of batches takes them. Includes no CUDA header.
#pragma once

#include <cstdint>

#include "kernels/layout/int4_tile.h"

namespace fut::cuda {

class LaunchContext;

// F16 [token][column], 16-byte aligned, rows a multiple of 16 bytes apart; factors of each token's
// results, null: 1.
struct Int4BatchTokens {
  const std::uint16_t* x = nullptr;
  std::int64_t stride = 0;
  const float* factors = nullptr;
};

// Of a float32 residual that a norm goes over: rounded to F16 as it is, 1 / rms as the factor, in scratch
// memory that the next call uses again. `op` names the launch in errors.
[[nodiscard]] Int4BatchTokens prepare_int4_tokens(const char* op, const float* x,
                                                  std::int64_t stride, int num_tokens, float eps,
                                                  const layout::Int4Tile& tile,
                                                  LaunchContext& context);

}  // namespace fut::cuda
