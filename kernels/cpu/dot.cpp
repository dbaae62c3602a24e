// In a file of its own, not inline: the library is compiled without contraction of a * b + c, and
// whoever calls this must get that arithmetic too.
#include "kernels/cpu/dot.h"

#include <array>

namespace fut::cpu {

float dot(const float* a, const float* b, std::int64_t cols) {
  std::array<float, kPartialSums> sums{};
  for (std::int64_t k = 0; k < cols; ++k) {
    sums[static_cast<std::size_t>(k % kPartialSums)] += a[k] * b[k];
  }
  for (std::size_t width = kPartialSums / 2; width >= 1; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0];
}

}  // namespace fut::cpu
