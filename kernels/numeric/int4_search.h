// Where the search for the scale of a group of INT4 weights begins and ends; the search itself is
// loader/int4_grid.h's, and a device's does the same.
#pragma once

namespace fut {

// Groups whose largest weight is smaller are all zeros; weights from the other one on have no scale.
inline constexpr float kSmallestInt4Weight = 0x1p-120F;
inline constexpr float kTooLargeInt4Weight = 0x1p127F;

// p = 1.05 - 0.01 i. In hundredths, so that 1.00, the min-max scale, is exact.
inline constexpr int kFirstScalePercent = 105;
inline constexpr int kLastScalePercent = 55;
inline constexpr int kScaleRefits = 2;

}  // namespace fut
