// Results of a row product as they are, in float32: an epilogue.
#pragma once

#include <cstdint>

namespace fut::cuda {

struct RowStore {
  float* out;
  std::int64_t stride;

  // A row below 0 is none.
  __device__ void store(int token, int lower_row, int upper_row, float lower, float upper) const {
    float* row = out + token * stride;
    if (lower_row >= 0) row[lower_row] = lower;
    if (upper_row >= 0) row[upper_row] = upper;
  }
};

}  // namespace fut::cuda
