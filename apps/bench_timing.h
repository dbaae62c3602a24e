// How often something is measured and what of it is told, by all that `fut bench` measures.
#pragma once

#include <vector>

#include "kernels/backend.h"

namespace fut::app {

// Runs `body` for at least so many microseconds of its own time: once first, then as often as should do.
// Those times, ascending. Throws Interrupted.
[[nodiscard]] std::vector<double> run_for(Backend& backend, const Backend::Procedure& body,
                                          double microseconds);
// Of times in ascending order.
[[nodiscard]] double median_of(const std::vector<double>& times);

}  // namespace fut::app
