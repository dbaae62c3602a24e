// See the header.
#include "apps/sampling_settings.h"

#include <algorithm>
#include <random>

#include "apps/logging.h"

namespace fut::app {
namespace {

constexpr const char* kFile = "generation_config.json";

// Picks flag, file or default, and keeps account of it.
class Chooser {
 public:
  explicit Chooser(std::vector<SamplingSetting>& settings) : settings_(settings) {}

  template <class T, class FileValue>
  T choose(const char* name, const std::optional<T>& flag, const std::optional<FileValue>& file,
           T fallback, const char* fallback_origin = "default") {
    T value = fallback;
    const char* origin = fallback_origin;
    if (flag) {
      value = *flag;
      origin = "flag";
    } else if (file) {
      value = static_cast<T>(*file);
      origin = kFile;
    }
    settings_.push_back({name, fmt::format("{}", value), origin});
    return value;
  }

 private:
  std::vector<SamplingSetting>& settings_;
};

void warn_of_idle_flags(const SamplingOptions& options, float temperature) {
  if (temperature > kGreedyTemperature || options.temperature) return;
  if (options.top_k || options.top_p || options.min_p) {
    log_warning(
        "the reply is greedy, so --top-k, --top-p and --min-p change nothing; give --temp T to "
        "sample");
  }
}

}  // namespace

SamplingSettings resolve_sampling(const SamplingOptions& options,
                                  const GenerationDefaults& defaults, bool tells) {
  SamplingSettings result;
  SampleParams& sample = result.params.sample;
  Chooser chooser(result.settings);
  // What the file says of sampling counts where it asks for sampling, or leaves that open.
  GenerationDefaults file = defaults;
  const char* greedy_origin = "default";
  if (file.do_sample.has_value() && !*file.do_sample) {
    file.temperature.reset();
    file.top_k.reset();
    file.top_p.reset();
    file.min_p.reset();
    greedy_origin = kFile;
  } else if (file.do_sample.has_value() && !file.temperature) {
    file.temperature = 1.0;
  }
  sample.temperature =
      chooser.choose("temperature", options.temperature, file.temperature, 0.0F, greedy_origin);
  sample.top_k = std::max(0, chooser.choose("top_k", options.top_k, file.top_k, 0));
  sample.top_p = chooser.choose("top_p", options.top_p, file.top_p, 1.0F);
  sample.min_p = chooser.choose("min_p", options.min_p, file.min_p, 0.0F);
  sample.repetition_penalty = chooser.choose("repetition_penalty", options.repetition_penalty,
                                             file.repetition_penalty, 1.0F);
  sample.presence_penalty = options.presence_penalty;
  sample.frequency_penalty = options.frequency_penalty;
  sample.temperature_first = options.temperature_first;
  result.params.repeat_last_n = options.repeat_last_n;
  // 32 random bits: short enough to be typed again.
  sample.seed = options.seed ? *options.seed : std::random_device{}();
  result.settings.push_back(
      {"seed", std::to_string(sample.seed), options.seed ? "flag" : "random"});
  result.settings.push_back({"sampler_order", options.temperature_first ? "hf" : "fut",
                             options.temperature_first ? "flag" : "default"});
  if (!tells) return result;
  warn_of_idle_flags(options, sample.temperature);
  std::string line;
  for (const SamplingSetting& s : result.settings) {
    line += fmt::format("{}{} {} ({})", line.empty() ? "" : ", ", s.name, s.value, s.origin);
  }
  log_info("sampling: {}", line);
  return result;
}

}  // namespace fut::app
