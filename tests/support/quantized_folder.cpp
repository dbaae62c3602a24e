// See the header.
#include "tests/support/quantized_folder.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "engine/quantize.h"
#include "kernels/check.h"
#include "tests/support/test_data.h"
#include "tokenizer/tokenizer.h"

namespace fut::test {
namespace {

std::vector<double> log_probabilities(const std::vector<float>& row) {
  const double maximum = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float v : row) sum += std::exp(static_cast<double>(v) - maximum);
  std::vector<double> logs;
  logs.reserve(row.size());
  for (const float v : row) logs.push_back(static_cast<double>(v) - maximum - std::log(sum));
  return logs;
}

std::ptrdiff_t best(const std::vector<float>& row) {
  return std::max_element(row.begin(), row.end()) - row.begin();
}

}  // namespace

ReportCard quantize_for_test(const std::filesystem::path& source,
                             const std::filesystem::path& target, PackedOptions options) {
  std::ifstream in(source_path("configs/calibration.txt"), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  FUT_CHECK(!text.empty(), "no calibration text at {}", source_path("configs").string());
  const std::vector<TokenId> ids = Tokenizer::load(source).encode(text, {});
  if (options.calibration_tokens == 0) {
    options.calibration_tokens =
        options.method == QuantMethod::Gptq ? 32768 : kRtnCalibrationTokens;
  }
  std::string notice;
  DeviceRequest request;
  request.kind = DeviceRequest::Kind::Cpu;
  const auto backend = make_backend(request, notice);
  return quantize_folder(*backend, source, target, options, ids, false);
}

RowComparison compare_windows(const std::vector<LogitRowsOf>& expected,
                              const std::vector<LogitRowsOf>& actual,
                              const std::vector<std::vector<std::int32_t>>& windows) {
  FUT_CHECK(expected.size() == windows.size() && actual.size() == windows.size(),
            "{} and {} sets of rows for {} windows", expected.size(), actual.size(),
            windows.size());
  RowComparison result;
  double squares = 0;
  double count = 0;
  for (std::size_t w = 0; w < windows.size(); ++w) {
    for (std::size_t t = 0; t + 1 < windows[w].size(); ++t) {
      const std::vector<double> p = log_probabilities(expected[w][t]);
      const std::vector<double> q = log_probabilities(actual[w][t]);
      for (std::size_t i = 0; i < p.size(); ++i) result.kl += std::exp(p[i]) * (p[i] - q[i]);
      const auto target = static_cast<std::size_t>(windows[w][t + 1]);
      const double difference = p[target] - q[target];
      result.difference += difference;
      squares += difference * difference;
      result.top1 += best(expected[w][t]) == best(actual[w][t]) ? 1 : 0;
      count += 1;
    }
  }
  result.kl /= count;
  result.difference /= count;
  result.top1 /= count;
  const double variance = squares / count - result.difference * result.difference;
  result.difference_error = std::sqrt(std::max(0.0, variance) / count);
  return result;
}

RowComparison compare_rows(const LogitRowsOf& expected, const LogitRowsOf& actual,
                           const std::vector<std::int32_t>& ids) {
  return compare_windows({expected}, {actual}, {ids});
}

}  // namespace fut::test
