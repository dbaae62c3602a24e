// The dot product of the contract (ops.h), written as it is defined: 16 partial sums, then pairs.
// The truth for tests; the ops use the vectorised loops, which give the same bits.
#pragma once

#include <cstdint>

namespace fut::cpu {

inline constexpr int kPartialSums = 16;

[[nodiscard]] float dot(const float* a, const float* b, std::int64_t cols);

}  // namespace fut::cpu
