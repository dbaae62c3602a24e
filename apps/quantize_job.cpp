// See the header.
#include "apps/quantize_job.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <sys/resource.h>

#include "apps/calibration_text.h"
#include "apps/logging.h"
#include "apps/progress.h"
#include "apps/signals.h"
#include "apps/text_input.h"
#include "apps/words.h"
#include "engine/quantize.h"
#include "engine/quantize_memory.h"
#include "kernels/error.h"
#include "loader/checkpoint.h"
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

// Of the tensors that are read.
std::uint64_t checkpoint_bytes(const std::filesystem::path& source) {
  ModelConfig config = load_model_config(source);
  return Checkpoint::open(source, config).total_bytes();
}

// How fast it goes; where that is slow, how long it may take yet.
std::string pace(double share, double source_bytes, double seconds) {
  constexpr double kSlow = 0.01;  // GB a second
  const double rate = share * source_bytes / 1e9 / std::max(seconds, 1e-3);
  if (rate >= kSlow || share <= 0) return fmt::format("{:.2f} GB/s", rate);
  return fmt::format("about {} left", seconds_text(seconds * (1 - share) / share));
}

std::uint64_t peak_host_bytes() {
  constexpr std::uint64_t kUnit = 1024;
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * kUnit;
}

// The most of a device's memory that was in use, beside what was in use before.
class PeakMemory {
 public:
  explicit PeakMemory(const Backend& backend)
      : backend_(backend), before_(backend.memory().free_bytes), least_(before_) {}

  // Where some of the work is done since the last look.
  void look(std::uint64_t done) {
    if (done == done_) return;
    done_ = done;
    least_ = std::min(least_, backend_.memory().free_bytes);
  }
  [[nodiscard]] std::uint64_t bytes() const { return before_ - least_; }

 private:
  const Backend& backend_;
  std::size_t before_, least_;
  std::uint64_t done_ = 0;
};

// On a terminal always: the time that is left is another one than expected.
void tell_that_it_goes_on(const KeptLayers& kept) {
  const std::string text = fmt::format(
      "going on after layer {} of {}, where an earlier run stopped", kept.done, kept.all);
  if (is_logged(LogLevel::Info) || !is_logged(LogLevel::Warning) || !standard_error_is_terminal()) {
    return log_info("{}", text);
  }
  write_to_standard_error(text + "\n");
}

std::string interruption_text(const KeptLayers& kept, const std::filesystem::path& target) {
  if (kept.done == 0) {
    return fmt::format(
        "interrupted before a layer was complete; nothing of this run is kept, and nothing was "
        "written under {}",
        target.string());
  }
  return fmt::format(
      "interrupted; the first {} of {} layers are kept in {}, and the same command goes on after "
      "them",
      kept.done, kept.all, kept.folder.string());
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

QuantizeOutcome run_quantize_job(Backend& backend, const QuantizeJob& job,
                                 const CalibrationSource& calibration, const Tokenizer& tokenizer) {
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  QuantizeOutcome outcome;
  outcome.source_bytes = checkpoint_bytes(job.source);
  const auto source_bytes = static_cast<double>(outcome.source_bytes);
  PeakMemory peak(backend);
  KeptLayers kept;
  try {
    std::optional<ProgressLine> line(std::in_place);
    line->show("quantising");
    const std::vector<TokenId> ids = encode_calibration(calibration, tokenizer);
    outcome.text_tokens = std::ssize(ids);
    const QuantizeResume resume{[&](const KeptLayers& found) {
                                  line.emplace();  // a line of its own
                                  tell_that_it_goes_on(found);
                                },
                                [&](const KeptLayers& left) { kept = left; }};
    outcome.card = quantize_folder(
        backend, job.source, job.target, job.options, ids, job.overwrite,
        [&](std::string_view stage, std::uint64_t done, std::uint64_t total) {
          peak.look(done);
          const double share = static_cast<double>(done) / static_cast<double>(total);
          line->show_bar("quantising", done, total,
                         fmt::format("{}, {}", stage, pace(share, source_bytes, seconds())));
        },
        job.threads, resume);
  } catch (const Interrupted& e) {
    throw Interrupted(e.signal(), interruption_text(kept, job.target));
  }
  outcome.seconds = seconds();
  outcome.device = backend.description();
  outcome.peak_host_bytes = peak_host_bytes();
  if (!backend.memory().is_the_hosts) {
    const ModelConfig config = load_model_config(job.source);
    outcome.peak_device_bytes = peak.bytes();
    outcome.planned_device_bytes = quantizer_bytes(
        config, job.options, calibration_size(config, job.options, outcome.text_tokens));
  }
  return outcome;
}

}  // namespace fut::app
