// Quantised copies of a model for tests, and comparisons of rows of logits.
#pragma once

#include <filesystem>
#include <vector>

#include "loader/packed_options.h"
#include "loader/report_card.h"

namespace fut::test {

// Quantises `source` into `target` with the calibration text that comes with the program, on all
// cores.
ReportCard quantize_for_test(const std::filesystem::path& source,
                             const std::filesystem::path& target, PackedOptions options);

using LogitRowsOf = std::vector<std::vector<float>>;

// What one set of rows says against another, token by token.
struct RowComparison {
  double kl = 0;                // mean of KL(expected || actual), nats
  double difference = 0;        // mean of the difference of negative log-likelihoods
  double difference_error = 0;  // its standard error
  double top1 = 0;              // share of rows with the same best token
};

// Row t predicts ids[t + 1]; the last row predicts nothing and is left out.
[[nodiscard]] RowComparison compare_rows(const LogitRowsOf& expected, const LogitRowsOf& actual,
                                         const std::vector<std::int32_t>& ids);

// The same over several windows, each with its own rows.
[[nodiscard]] RowComparison compare_windows(const std::vector<LogitRowsOf>& expected,
                                            const std::vector<LogitRowsOf>& actual,
                                            const std::vector<std::vector<std::int32_t>>& windows);

}  // namespace fut::test
