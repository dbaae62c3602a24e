// generation_config.json: suggestions, so the file and every key may be missing; but what is there
// must make sense.
#include <limits>
#include <system_error>

#include "loader/json_file.h"
#include "loader/model_config.h"

namespace fut {

GenerationDefaults load_generation_defaults(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "generation_config.json";
  GenerationDefaults defaults;
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(file, error))) return defaults;

  constexpr double kLargest = std::numeric_limits<float>::max();
  constexpr double kSmallest = std::numeric_limits<float>::min();
  const nlohmann::json document = read_json_file(file);
  const JsonObject config(file, document);
  defaults.do_sample = config.boolean("do_sample");
  defaults.temperature = config.number("temperature", 0, kLargest);
  // -1 and 0 both mean that the stage is off; vocabularies have at most 2^24 tokens.
  if (const auto top_k = config.integer("top_k", -1, std::numeric_limits<int>::max())) {
    defaults.top_k = static_cast<int>(*top_k);
  }
  defaults.top_p = config.number("top_p", kSmallest, 1);
  defaults.min_p = config.number("min_p", 0, 1);
  defaults.repetition_penalty = config.number("repetition_penalty", kSmallest, kLargest);
  defaults.eos_token_ids = config.token_ids("eos_token_id");
  return defaults;
}

}  // namespace fut
