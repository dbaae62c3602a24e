// The error of every matrix of a quantised folder, as a picture.
#pragma once

#include <string>

#include "apps/reporter.h"

namespace fut::app {

// `matrices` as fut inspect reports them. A bar each, worst first, from the top.
[[nodiscard]] std::string error_plot(const Json& matrices, std::string_view title);

}  // namespace fut::app
