// Plain SVG drawings, readable on light and dark ground.
#pragma once

#include <string>
#include <string_view>

namespace fut::app {

class Svg {
 public:
  Svg(int width, int height, std::string_view title);
  void line(double x1, double y1, double x2, double y2, std::string_view css_class);
  void box(double x, double y, double width, double height, std::string_view css_class,
           std::string_view tip = {});
  void dot(double x, double y, std::string_view css_class, std::string_view tip = {});
  // `anchor`: start, middle, end.
  void text(double x, double y, std::string_view words, std::string_view anchor = "start");
  // The document.
  [[nodiscard]] std::string finish() const { return body_ + "</svg>\n"; }

 private:
  std::string body_;
};

// A round number at or above `value`: 1, 2 or 5 times a power of ten.
[[nodiscard]] double round_up(double value);

}  // namespace fut::app
