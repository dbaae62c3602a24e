// The flags of fut bench that are about whole requests.
#pragma once

#include "apps/flag_groups.h"

namespace fut::app {

[[nodiscard]] Flags latency_flags(LatencyOptions& options);
// -o with the two tables that only measurements have.
[[nodiscard]] Flags bench_output_flags(OutputOptions& options);

// Throws Usage for flags that would do nothing as they are combined.
void check_latency_flags(const BenchOptions& options);

}  // namespace fut::app
