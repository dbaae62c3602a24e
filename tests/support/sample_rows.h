// Rows of logits to sample from, each with all that its draw depends on.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/backends.h"

namespace fut::test {

struct SampleRow {
  std::vector<float> logits;
  SampleParams params;
  std::uint64_t draw_index = 0;
  std::vector<std::int32_t> history;
};

// One call of the op for all rows; their logits have the same number.
[[nodiscard]] std::vector<std::int32_t> sample_rows(Backend& backend,
                                                    const std::vector<SampleRow>& rows);

}  // namespace fut::test
