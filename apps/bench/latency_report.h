// The rows of fut bench --end-to-end in each of its forms.
#pragma once

#include <vector>

#include "apps/bench/latency.h"
#include "apps/bench/roofline_plot.h"
#include "apps/options.h"
#include "apps/reporter.h"

namespace fut::app {

void begin_latency_report(const LatencySubject& subject, Reporter& reporter);
// `with_energy`: joules of a token, too.
void add_latency_row(const LatencyRow& row, bool with_energy, Reporter& reporter);
// Writes the plot where one is wanted. Throws Runtime.
void end_latency_report(const std::vector<LatencyRow>& rows, const Roofline& roofline, Output* plot,
                        Reporter& reporter);

}  // namespace fut::app
