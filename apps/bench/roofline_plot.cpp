// See the header.
#include "apps/bench/roofline_plot.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <utility>

namespace fut::app {
namespace {

constexpr double kLeft = 80, kRight = 640, kTop = 50, kBottom = 290;
constexpr double kLabels = 660;  // where the list of kernels stands

// From a power of ten to a power of ten.
struct LogAxis {
  double from = 0, to = 1;  // exponents
  double begin = 0, end = 1;
  [[nodiscard]] double at(double value) const {
    return begin + (end - begin) * (std::log10(value) - from) / (to - from);
  }
};

LogAxis axis_around(double least, double most, double begin, double end) {
  LogAxis axis{std::floor(std::log10(least)), std::ceil(std::log10(most)), begin, end};
  if (axis.to <= axis.from) axis.to = axis.from + 1;
  return axis;
}

// "10 G", "1 T"
std::string power_text(double exponent) {
  constexpr const char* kPrefixes[] = {"", " k", " M", " G", " T", " P"};
  const auto thousands = static_cast<std::size_t>(std::clamp(std::floor(exponent / 3), 0.0, 5.0));
  return fmt::format("{:g}{}", std::pow(10, exponent - 3 * static_cast<double>(thousands)),
                     kPrefixes[thousands]);
}

void draw_axes(Svg& svg, const LogAxis& x, const LogAxis& y) {
  for (double e = x.from; e <= x.to; ++e) {
    const double at = x.at(std::pow(10, e));
    svg.line(at, y.begin, at, y.end, e == x.from ? "axis" : "grid");
    svg.text(at, y.begin + 16, fmt::format("{:g}", std::pow(10, e)), "middle");
  }
  for (double e = y.from; e <= y.to; ++e) {
    const double at = y.at(std::pow(10, e));
    svg.line(x.begin, at, x.end, at, e == y.from ? "axis" : "grid");
    svg.text(x.begin - 6, at + 4, power_text(e), "end");
  }
  svg.text((x.begin + x.end) / 2, y.begin + 36, "operations a byte that is read", "middle");
}

void draw_roofs(Svg& svg, const Roofline& r, const LogAxis& x, const LogAxis& y) {
  const double left = std::pow(10, x.from), right = std::pow(10, x.to);
  const double most = std::pow(10, y.to);
  const double knee = r.flops_per_second > 0 ? r.flops_per_second / r.bytes_per_second : right;
  // Where the slope leaves the picture, it ends.
  const double end = std::min({knee, right, most / r.bytes_per_second});
  svg.line(x.at(left), y.at(left * r.bytes_per_second), x.at(end), y.at(end * r.bytes_per_second),
           "roof");
  if (knee < right)
    svg.line(x.at(knee), y.at(r.flops_per_second), x.end, y.at(r.flops_per_second), "roof");
}

// Numbers of points that lie close together stand side by side.
double label_shift(const std::vector<std::pair<double, double>>& drawn, double x, double y) {
  constexpr double kClose = 14, kBesideThePoint = 6, kNumber = 10;
  double shift = kBesideThePoint;
  for (const auto& [other_x, other_y] : drawn) {
    if (std::abs(other_x - x) < kClose && std::abs(other_y - y) < kClose) shift += kNumber;
  }
  return shift;
}

}  // namespace

void draw_roofline(Svg& svg, const Roofline& r, double down) {
  svg.text(kLeft, down + kTop - 20,
           "roofline: operations a second of each kernel of a decode step");
  if (r.points.empty() || r.bytes_per_second <= 0) {
    return svg.text(kLeft, down + kTop, "nothing was measured");
  }
  double least_x = r.points[0].flops_per_byte, most_x = least_x;
  double least_y = r.points[0].flops_per_second, most_y = least_y;
  for (const RooflinePoint& p : r.points) {
    least_x = std::min(least_x, p.flops_per_byte);
    most_x = std::max(most_x, p.flops_per_byte);
    least_y = std::min(least_y, p.flops_per_second);
    most_y = std::max({most_y, p.flops_per_second, p.flops_per_byte * r.bytes_per_second});
  }
  if (r.flops_per_second > 0) {
    most_x = std::max(most_x, 2 * r.flops_per_second / r.bytes_per_second);
    most_y = std::max(most_y, r.flops_per_second);
  }
  const LogAxis x = axis_around(least_x, most_x * 1.01, kLeft, kRight);
  least_y = std::min(least_y, std::pow(10, x.from) * r.bytes_per_second);
  const LogAxis y = axis_around(least_y, most_y * 1.01, down + kBottom, down + kTop);
  draw_axes(svg, x, y);
  draw_roofs(svg, r, x, y);
  std::vector<std::pair<double, double>> drawn;
  double line = down + kTop + 10;
  for (std::size_t i = 0; i < r.points.size(); ++i) {
    const RooflinePoint& p = r.points[i];
    double roof = p.flops_per_byte * r.bytes_per_second;
    if (r.flops_per_second > 0) roof = std::min(roof, r.flops_per_second);
    const std::string words =
        fmt::format("{}: {:.1f} % of the roof", p.name, 100 * p.flops_per_second / roof);
    const double at_x = x.at(p.flops_per_byte), at_y = y.at(p.flops_per_second);
    svg.dot(at_x, at_y, "b", words);
    svg.text(at_x + label_shift(drawn, at_x, at_y), at_y + 4, std::to_string(i + 1));
    drawn.emplace_back(at_x, at_y);
    svg.text(kLabels, line, fmt::format("{}  {}", i + 1, words));
    line += 18;
  }
}

}  // namespace fut::app
