// See the header.
#include "apps/bench/latency_plot.h"

#include <algorithm>
#include <fmt/format.h>

#include "apps/svg.h"

namespace fut::app {
namespace {

constexpr int kPanelHeight = 240;
constexpr double kLeft = 60, kRight = 460, kSecondLeft = 540, kSecondRight = 900;
constexpr double kTop = 40, kBottom = 200;

void draw_steps(Svg& svg, const PlotSeries& s, double down) {
  const double most = s.steps.empty() ? 1 : round_up(*std::ranges::max_element(s.steps));
  const auto y = [&](double ms) { return down + kBottom - (kBottom - kTop) * ms / most; };
  for (int i = 0; i <= 4; ++i) {
    const double ms = most * i / 4;
    svg.line(kLeft, y(ms), kRight, y(ms), i == 0 ? "axis" : "grid");
    svg.text(kLeft - 6, y(ms) + 4, fmt::format("{:.3g}", ms), "end");
  }
  const double width =
      (kRight - kLeft) / static_cast<double>(std::max<std::size_t>(1, s.steps.size()));
  for (std::size_t i = 0; i < s.steps.size(); ++i) {
    svg.dot(kLeft + width * (static_cast<double>(i) + 0.5), y(s.steps[i]), "a",
            fmt::format("step {}: {:.3f} ms", i, s.steps[i]));
  }
  svg.text((kLeft + kRight) / 2, down + kBottom + 20, fmt::format("step, 0 to {}", s.steps.size()),
           "middle");
  svg.text(kLeft, down + kTop - 12, s.name + ": ms between tokens");
}

void draw_histogram(Svg& svg, const PlotSeries& s, double down) {
  std::size_t most = 1;
  for (const HistogramBin& b : s.bins) most = std::max(most, b.count);
  svg.line(kSecondLeft, down + kBottom, kSecondRight, down + kBottom, "axis");
  const double width =
      (kSecondRight - kSecondLeft) / static_cast<double>(std::max<std::size_t>(1, s.bins.size()));
  for (std::size_t i = 0; i < s.bins.size(); ++i) {
    const HistogramBin& b = s.bins[i];
    const double height =
        (kBottom - kTop) * static_cast<double>(b.count) / static_cast<double>(most);
    svg.box(kSecondLeft + width * static_cast<double>(i) + 1, down + kBottom - height, width - 2,
            height, "b", fmt::format("{:.3f} to {:.3f} ms: {}", b.from, b.to, b.count));
  }
  if (s.bins.empty()) return;
  svg.text(kSecondLeft, down + kBottom + 20, fmt::format("{:.3f} ms", s.bins.front().from));
  svg.text(kSecondRight, down + kBottom + 20, fmt::format("{:.3f} ms", s.bins.back().to), "end");
  svg.text(kSecondLeft, down + kTop - 12, fmt::format("histogram, highest bar {}", most));
}

}  // namespace

std::string latency_plot(std::span<const PlotSeries> series, const Roofline* roofline) {
  constexpr int kWidth = 940;
  const int height = kPanelHeight * static_cast<int>(std::max<std::size_t>(1, series.size())) +
                     (roofline == nullptr ? 0 : kRooflineHeight);
  Svg svg(kWidth, height, "Latency by step");
  double down = 0;
  for (const PlotSeries& s : series) {
    draw_steps(svg, s, down);
    draw_histogram(svg, s, down);
    down += kPanelHeight;
  }
  if (roofline != nullptr) draw_roofline(svg, *roofline, down);
  return svg.finish();
}

}  // namespace fut::app
