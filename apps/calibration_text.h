// The text that quantisers are calibrated on, in the program itself: configs/calibration.txt.
#pragma once

#include <string_view>

namespace fut::app {

inline constexpr std::string_view kCalibrationTextName = "calibration.txt";

[[nodiscard]] std::string_view builtin_calibration_text();

}  // namespace fut::app
