// Times as a histogram of text, and the ones that stand out by name.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace fut::app {

struct HistogramBin {
  double from = 0, to = 0;
  std::size_t count = 0;
};
// Bins of one width from the least to the 99th percentile; the last one holds all that is above.
[[nodiscard]] std::vector<HistogramBin> histogram(std::span<const double> values,
                                                  std::size_t bins = 12);

// A line for each bin, with a bar; `unit` follows the numbers.
[[nodiscard]] std::string histogram_text(std::span<const HistogramBin> bins, std::string_view unit);

}  // namespace fut::app
