// The report card of a quantised folder, for people and as JSON. What its numbers mean is said in
// loader/report_card.h.
#pragma once

#include <cstddef>
#include <string>

#include "apps/reporter.h"
#include "loader/packed_options.h"
#include "loader/report_card.h"

namespace fut::app {

// "gptq, groups of 128, rotated, q and k balanced, ..."
[[nodiscard]] std::string options_text(const PackedOptions& options);

// A heading and one line a matrix, worst first (by loss where GPTQ made them), at most `most_lines`
// of them and then how many more there are.
[[nodiscard]] std::string report_lines(const ReportCard& card, std::size_t most_lines);

// "matrices", worst first, "mean_relative_error" and "notices".
[[nodiscard]] Json report_document(const ReportCard& card);

}  // namespace fut::app
