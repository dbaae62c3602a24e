// See the header.
#include "apps/error_plot.h"

#include <algorithm>
#include <fmt/format.h>

#include "apps/svg.h"

namespace fut::app {

std::string error_plot(const Json& matrices, std::string_view title) {
  constexpr double kRow = 18, kTop = 50, kLeft = 260, kWidth = 560;
  const int height = static_cast<int>(kTop + kRow * static_cast<double>(matrices.size()) + 30);
  Svg svg(900, height, title);
  svg.text(12, 22, title);
  double most = 0;
  for (const Json& m : matrices) most = std::max(most, m.at("relative_error").get<double>());
  most = round_up(most);
  for (int i = 0; i <= 4; ++i) {
    const double x = kLeft + kWidth * i / 4;
    svg.line(x, kTop - 6, x, height - 24, i == 0 ? "axis" : "grid");
    svg.text(x, kTop - 12, fmt::format("{:.3g}", most * i / 4), "middle");
  }
  double y = kTop;
  for (const Json& m : matrices) {
    const auto name = m.at("name").get<std::string>();
    const double error = m.at("relative_error").get<double>();
    svg.text(kLeft - 8, y + 12, name, "end");
    svg.box(kLeft, y + 2, kWidth * error / most, kRow - 4, "a",
            fmt::format("{}: {:.5f}", name, error));
    y += kRow;
  }
  svg.text(kLeft, height - 8, "relative error of each matrix");
  return svg.finish();
}

}  // namespace fut::app
