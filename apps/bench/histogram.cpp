// See the header.
#include "apps/bench/histogram.h"

#include <algorithm>
#include <fmt/format.h>

#include "apps/bench/statistics.h"

namespace fut::app {

std::vector<HistogramBin> histogram(std::span<const double> values, std::size_t bins) {
  if (values.empty()) return {};
  const Summary s = summarise(values);
  const double end = s.p99 > s.least ? s.p99 : s.most;
  if (end <= s.least) return {{s.least, s.most, values.size()}};
  const double width = (end - s.least) / static_cast<double>(bins);
  std::vector<HistogramBin> result(bins);
  for (std::size_t i = 0; i < bins; ++i) {
    result[i].from = s.least + width * static_cast<double>(i);
    result[i].to = i + 1 == bins ? s.most : result[i].from + width;
  }
  for (const double v : values) {
    const auto bin = static_cast<std::size_t>((v - s.least) / width);
    ++result[std::min(bin, bins - 1)].count;
  }
  return result;
}

std::string histogram_text(std::span<const HistogramBin> bins, std::string_view unit) {
  constexpr std::size_t kCells = 50;
  std::size_t most = 1;
  for (const HistogramBin& bin : bins) most = std::max(most, bin.count);
  std::string text;
  for (const HistogramBin& bin : bins) {
    // What is there at all is seen.
    const std::size_t cells =
        bin.count == 0 ? 0 : std::max<std::size_t>(1, bin.count * kCells / most);
    text += fmt::format("  {:>9.3f} to {:>9.3f} {} {:>7} {}\n", bin.from, bin.to, unit, bin.count,
                        std::string(cells, '#'));
  }
  return text;
}

}  // namespace fut::app
