// Latency by step, and its histogram, as a picture.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/bench/histogram.h"
#include "apps/bench/roofline_plot.h"

namespace fut::app {

struct PlotSeries {
  std::string name;
  std::vector<double> steps;  // ms, of one request
  std::vector<HistogramBin> bins;
};

// A pair of panels for each series, and the roofline below them where there is one, as SVG.
[[nodiscard]] std::string latency_plot(std::span<const PlotSeries> series,
                                       const Roofline* roofline = nullptr);

}  // namespace fut::app
