// Loops of the host that are no op: shared among threads that live as long as the loop.
#pragma once

#include "loader/quantized_matrix.h"

namespace fut {

// A ParallelFor on `num_threads` threads (0: one for each core), the caller's among them. Each takes
// one contiguous piece.
[[nodiscard]] ParallelFor parallel_for_on_threads(int num_threads);

}  // namespace fut
