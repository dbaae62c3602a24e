// How often something is measured, by all that `fut bench` runs again and again.
#pragma once

#include <vector>

#include "kernels/backend.h"

namespace fut::app {

// Runs `body` for at least so many microseconds of its own time: once first, then as often as should do.
// Those times. Throws Interrupted.
[[nodiscard]] std::vector<double> run_for(Backend& backend, const Backend::Procedure& body,
                                          double microseconds);

}  // namespace fut::app
