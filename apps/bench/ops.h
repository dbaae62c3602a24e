// The ops of a decode step, each timed apart, beside what memory and arithmetic allow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/bench/roofline_plot.h"
#include "apps/bench/statistics.h"
#include "apps/reporter.h"
#include "engine/decode_bench.h"

namespace fut::app {

// A measured roof for each of the two; the second is 0 where the backend has none.
struct MeasuredRoof {
  double bytes_per_second = 0;
  double flops_per_second = 0;
};

// Runs that are not timed, then runs that are. Microseconds of each. Throws Interrupted.
[[nodiscard]] std::vector<double> times_of(Backend& backend, const Backend::Procedure& body,
                                           int warm_up, int repetitions);

// A row of the report: bytes and time beside the time that the bytes take at least.
[[nodiscard]] Json op_row(std::string_view name, int calls, std::int64_t bytes, const Summary& us,
                          double bytes_per_second);

// A row for each op, with its operations. In the order of a step.
[[nodiscard]] Json measure_ops(Backend& backend, DecodeBench& decode, int warm_up, int repetitions,
                               const MeasuredRoof& roof);
[[nodiscard]] std::string ops_text(const Json& rows);
// What of it a picture shows.
[[nodiscard]] Roofline roofline_of(const Json& rows, const MeasuredRoof& roof);

// "1.83 TB/s", "15.2 GB/s"
[[nodiscard]] std::string bandwidth_text(double bytes_per_second);

}  // namespace fut::app
