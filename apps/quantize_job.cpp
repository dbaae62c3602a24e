// See the header.
#include "apps/quantize_job.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "apps/calibration_text.h"
#include "apps/progress.h"
#include "apps/text_input.h"
#include "engine/quantize.h"
#include "kernels/error.h"
#include "loader/crc32c.h"

namespace fut::app {
namespace {

// Control tokens spelt out in a text about them are text. A text has a BOS in front where the
// model's texts do.
std::vector<TokenId> encode_calibration(const CalibrationSource& source,
                                        const Tokenizer& tokenizer) {
  EncodeOptions options;
  options.parse_special = false;
  return tokenizer.encode(source.text, options);
}

}  // namespace

CalibrationSource read_calibration(const std::string& path) {
  if (path.empty()) {
    return {std::string(kCalibrationTextName), std::string(builtin_calibration_text())};
  }
  CalibrationSource source{std::filesystem::path(path).filename().string(), read_whole_file(path)};
  if (source.text.empty()) {
    throw data_error(
        "{}: 0 bytes, and calibration needs a text; leave --calib out for the text in "
        "the program",
        path);
  }
  return source;
}

void set_calibration(PackedOptions& options, const CalibrationSource& source,
                     std::optional<std::int64_t> tokens) {
  const auto bytes = std::as_bytes(std::span(source.text));
  options.calibration = {source.name, bytes.size(), crc32c(bytes)};
  options.calibration_tokens = tokens.value_or(
      options.method == QuantMethod::Gptq ? kGptqCalibrationTokens : kRtnCalibrationTokens);
}

QuantizeOutcome run_quantize_job(const QuantizeJob& job, const CalibrationSource& calibration,
                                 const Tokenizer& tokenizer) {
  const auto start = std::chrono::steady_clock::now();
  DeviceRequest request;
  request.kind = DeviceRequest::Kind::Cpu;
  request.cpu_threads = job.threads;
  std::string notice;
  const auto backend = make_backend(request, notice);
  QuantizeOutcome outcome;
  {
    ProgressLine line;
    line.show("quantising");
    const std::vector<TokenId> ids = encode_calibration(calibration, tokenizer);
    outcome.text_tokens = std::ssize(ids);
    outcome.card = quantize_folder(
        *backend, job.source, job.target, job.options, ids, job.overwrite,
        [&](std::string_view stage, std::uint64_t done, std::uint64_t total) {
          line.show_bar("quantising", done, total, stage);
        },
        job.threads);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  outcome.seconds = seconds.count();
  return outcome;
}

}  // namespace fut::app
