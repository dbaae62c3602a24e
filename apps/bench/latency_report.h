// The rows of fut bench --end-to-end in each of its forms.
#pragma once

#include <vector>

#include "apps/bench/latency.h"
#include "apps/options.h"
#include "apps/reporter.h"

namespace fut::app {

void begin_latency_report(const LatencySubject& subject, Reporter& reporter);
void add_latency_row(const LatencyRow& row, Reporter& reporter);
// Writes the plot where one is wanted. Throws Runtime.
void end_latency_report(const std::vector<LatencyRow>& rows, Output* plot, Reporter& reporter);

}  // namespace fut::app
