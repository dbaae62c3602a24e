// fut quantize: a checkpoint in, a folder with its quantised weights out. The result on standard
// output is the report card.
#include "engine/quantize.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "apps/commands.h"
#include "apps/logging.h"
#include "apps/model_lookup.h"
#include "apps/model_session.h"
#include "apps/quantize_job.h"
#include "apps/report_text.h"
#include "apps/words.h"
#include "kernels/error.h"
#include "loader/packed_model.h"

namespace fut::app {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kShownMatrices = 8;

// "NAME-gptq-g128". Beside the checkpoint where that is a folder of the user's; in the working
// folder where it lies in a cache or with the program.
fs::path default_target(const std::string& argument, const fs::path& found,
                        const PackedOptions& options) {
  const std::string ending =
      fmt::format("-{}-g{}", method_name(options.method), options.group_size);
  std::error_code ignored;
  const bool is_users_own = !argument.empty() && fs::exists(argument, ignored);
  if (is_users_own) {
    fs::path folder = fs::absolute(found, ignored).lexically_normal();
    if (!folder.has_filename()) folder = folder.parent_path();  // "models/llama/"
    return folder.parent_path() / (folder.filename().string() + ending);
  }
  const std::string name =
      argument.empty() ? found.filename().string()
                       : fs::path(argument.substr(0, argument.find('@'))).filename().string();
  return name + ending;
}

PackedOptions packed_options(const QuantizeOptions& options, const CalibrationSource& calibration) {
  PackedOptions packed = options.packed;
  packed.rotate = options.rotate.value_or(packed.method == QuantMethod::Gptq);
  if (!packed.rotate && options.rotation_seed_is_typed) {
    throw usage_error(
        "--rotation-seed {} does nothing without the rotation, which is {}; add --rotate, or leave "
        "the "
        "seed out",
        packed.rotation_seed, options.rotate ? "switched off" : "off with --method rtn");
  }
  if (!packed.rotate) packed.rotation_seed = 0;  // says nothing then
  set_calibration(packed, calibration, options.calibration_tokens);
  return packed;
}

// Refused before a word of calibration text is read; the quantiser looks once more.
void check_target(const fs::path& target, bool overwrite) {
  std::error_code error;
  if (!fs::exists(target, error) ||
      (fs::is_directory(target, error) && fs::is_empty(target, error))) {
    return;
  }
  if (!PackedModel::is_packed(target)) {
    throw data_error("{}: is there already and is no quantised folder; choose another one with -o",
                     target.string());
  }
  if (!overwrite) {
    throw data_error(
        "{}: is there already; give --overwrite to replace it, or another folder with "
        "-o",
        target.string());
  }
}

std::uint64_t folder_bytes(const fs::path& folder) {
  std::uint64_t sum = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file()) sum += entry.file_size();
  }
  return sum;
}

// A text that is too short has a notice of its own in the card.
void tell_about_rounding(const QuantizeOptions& options, const ModelConfig& config,
                         const QuantizeOutcome& outcome) {
  if (!options.calibration_tokens) return;
  const std::int64_t asked = *options.calibration_tokens;
  const std::int64_t used = outcome.card.calibration_tokens;
  if (used == asked || outcome.text_tokens < asked) return;
  const bool gptq = options.packed.method == QuantMethod::Gptq;
  log_warning("--calib-tokens {}: {} are used, as calibration takes whole windows of {}", asked,
              used,
              std::min(gptq ? kGptqWindow : kStatisticsWindow, config.max_position_embeddings));
}

std::unique_ptr<Backend> open_quantizer(const QuantizeOptions& options, const ModelConfig& config) {
  auto backend = open_backend(options.device);
  require_able(backend, config, Precision::Bf16, options.device);
  return backend;
}

std::string memory_line(const QuantizeOutcome& outcome) {
  std::string line = fmt::format("peak memory: {} of the host", size_text(outcome.peak_host_bytes));
  if (outcome.peak_device_bytes) {
    line += fmt::format(", {} of {} ({} by its sizes)", size_text(*outcome.peak_device_bytes),
                        outcome.device, size_text(outcome.planned_device_bytes));
  }
  return line + "\n";
}

void report(const QuantizeJob& job, const QuantizeOutcome& outcome, std::size_t shown,
            Reporter& reporter) {
  const std::uint64_t bytes = folder_bytes(job.target);
  if (reporter.is_text()) {
    reporter.text(fmt::format("{}\n", job.target.string()));
    reporter.text(fmt::format("{}\n", options_text(job.options)));
    reporter.text(
        fmt::format("{} of weights became {} in {}; {} of {}\n", size_text(outcome.source_bytes),
                    size_text(bytes), seconds_text(outcome.seconds),
                    counted(static_cast<std::uint64_t>(outcome.card.calibration_tokens), "token"),
                    job.options.calibration.name));
    reporter.text(memory_line(outcome));
    reporter.text(report_lines(outcome.card, shown));
    return;
  }
  Json& document = reporter.document();
  document["target"] = job.target.string();
  document["options"] = Json::parse(options_json(job.options));
  document["source_bytes"] = outcome.source_bytes;
  document["bytes"] = bytes;
  document["seconds"] = outcome.seconds;
  document["device"] = outcome.device;
  document["peak_host_bytes"] = outcome.peak_host_bytes;
  if (outcome.peak_device_bytes) document["peak_device_bytes"] = *outcome.peak_device_bytes;
  document.update(report_document(outcome.card));
}

}  // namespace

int quantize(const QuantizeOptions& options, Reporter& reporter) {
  const CalibrationSource calibration = read_calibration(options.calibration_file);
  const FoundFolder found = find_model_folder(options.model, Wanted::Model);
  if (!found.notice.empty()) log_warning("{}", found.notice);
  reporter.document()["model"] = found.path.string();
  QuantizeJob job{found.path, options.target, packed_options(options, calibration),
                  options.device.cpu_threads, options.overwrite};
  if (job.target.empty()) job.target = default_target(options.model, found.path, job.options);
  if (PackedModel::is_packed(found.path)) {
    throw data_error("{}: is quantised already; quantise the checkpoint that it was made from",
                     found.path.string());
  }
  ModelFolder folder = read_model_folder(found.path);
  for (const std::string& notice : folder.notices) log_warning("{}", notice);
  require_packable(folder, job.options.group_size);
  check_target(job.target, job.overwrite);
  const auto backend = open_quantizer(options, folder.config);
  const QuantizeOutcome outcome = run_quantize_job(*backend, job, calibration, folder.tokenizer);
  for (const std::string& notice : outcome.card.notices) log_warning("{}", notice);
  tell_about_rounding(options, folder.config, outcome);
  const bool all = options.log.verbosity >= kInfoVerbosity;
  const std::size_t shown = all ? outcome.card.matrices.size() : kShownMatrices;
  try {
    report(job, outcome, shown, reporter);
    reporter.finish();
  } catch (const Error& e) {
    throw runtime_failure(
        "the folder {} is complete; only the report card could not be printed: {}",
        job.target.string(), e.what());
  }
  return 0;
}

}  // namespace fut::app
