// The roofline, and where kernels stand below it, as a panel of a picture. Both axes are logarithmic.
#pragma once

#include <string>
#include <vector>

#include "apps/svg.h"

namespace fut::app {

struct RooflinePoint {
  std::string name;
  double flops_per_byte = 0;
  double flops_per_second = 0;
};

struct Roofline {
  double bytes_per_second = 0;
  double flops_per_second = 0;  // 0: not known
  std::vector<RooflinePoint> points;
};

inline constexpr int kRooflineHeight = 340;

// From `down` on, kRooflineHeight high.
void draw_roofline(Svg& svg, const Roofline& roofline, double down);

}  // namespace fut::app
