// Counts a backend's allocations and, for tests, makes one of them fail as if there were no more memory:
// so every place that can run out of it can be shown to say so. Includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fut {

class AllocationCount {
 public:
  // failing: which one fails, the first being 1; 0: none.
  explicit AllocationCount(int failing = 0) : failing_(failing) {}

  // Before each allocation. Throws Capacity with the bytes where it is the one that fails.
  void next(std::size_t bytes);

 private:
  std::int64_t failing_;
  std::int64_t count_ = 0;
};

}  // namespace fut
