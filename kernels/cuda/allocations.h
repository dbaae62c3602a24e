// The count of what this process asks the CUDA runtime for, so that a test can make any of it fail. One for
// all: memory, pinned memory and recordings are owned by objects that know of no backend. Includes no CUDA
// header.
#pragma once

#include "kernels/allocation_count.h"

namespace fut::cuda {

[[nodiscard]] AllocationCount& allocations();

}  // namespace fut::cuda
