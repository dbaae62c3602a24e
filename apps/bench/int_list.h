// Lists of whole numbers as benchmarks take them: "16,32", "8k", "16-256*2", "100-500+100".
#pragma once

#include <vector>

#include "apps/values.h"

namespace fut::app {

// Throws Usage naming the flag and the part that is none; at most 100 numbers.
[[nodiscard]] std::vector<int> parse_int_list(const Argument& argument, int least, int most);

}  // namespace fut::app
