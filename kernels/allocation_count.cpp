// See the header.
#include "kernels/allocation_count.h"

#include "kernels/error.h"

namespace fut {

void AllocationCount::next(std::size_t bytes) {
  if (++count_ != failing_) return;
  throw capacity_error("out of memory: {} bytes wanted; allocation {} was made to fail", bytes,
                       count_);
}

}  // namespace fut
