// See the header.
#include "apps/svg.h"

#include <cmath>
#include <fmt/format.h>

namespace fut::app {
namespace {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '&')
      result += "&amp;";
    else if (c == '"')
      result += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20 || c == '\n')
      result += c;
  }
  return result;
}

std::string tip_of(std::string_view tip) {
  return tip.empty() ? "" : fmt::format("<title>{}</title>", escaped(tip));
}

constexpr std::string_view kStyle =
    "<style>.ground{fill:#fff}text{font:12px sans-serif;fill:#222}.axis{stroke:#222}"
    ".grid{stroke:#8886}"
    ".a{fill:#1f77b4;stroke:#1f77b4}.b{fill:#d1622a;stroke:#d1622a}"
    ".roof{stroke:#b03a2e;stroke-width:2;fill:none}"
    "@media(prefers-color-scheme:dark){.ground{fill:#16181c}text{fill:#ddd}.axis{stroke:#ddd}"
    ".a{fill:#6db3f2;stroke:#6db3f2}.b{fill:#f29b6d;stroke:#f29b6d}.roof{stroke:#ff7b6b}}</"
    "style>\n";

}  // namespace

Svg::Svg(int width, int height, std::string_view title)
    : body_(fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
                        "viewBox=\"0 0 {0} {1}\" role=\"img\">\n<title>{2}</title>\n{3}"
                        "<rect width=\"{0}\" height=\"{1}\" class=\"ground\"/>\n",
                        width, height, escaped(title), kStyle)) {}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view css_class) {
  body_ +=
      fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n",
                  x1, y1, x2, y2, css_class);
}

void Svg::box(double x, double y, double width, double height, std::string_view css_class,
              std::string_view tip) {
  body_ += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" class=\"{}\">{}</rect>\n",
      x, y, width, height, css_class, tip_of(tip));
}

void Svg::dot(double x, double y, std::string_view css_class, std::string_view tip) {
  body_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" class=\"{}\">{}</circle>\n", x,
                       y, css_class, tip_of(tip));
}

void Svg::text(double x, double y, std::string_view words, std::string_view anchor) {
  body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y,
                       anchor, escaped(words));
}

double round_up(double value) {
  if (value <= 0 || !std::isfinite(value)) return 1;
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double times : {1.0, 2.0, 5.0}) {
    if (times * power >= value) return times * power;
  }
  return 10 * power;
}

}  // namespace fut::app
