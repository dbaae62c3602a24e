// The sampling values that act, and where each came from: a flag, generation_config.json or the
// default.
#pragma once

#include <string>
#include <vector>

#include "apps/options.h"
#include "engine/engine.h"
#include "loader/model_config.h"

namespace fut::app {

struct SamplingSetting {
  std::string name;
  std::string value;
  std::string origin;
};

struct SamplingSettings {
  SamplingParams params;
  std::vector<SamplingSetting> settings;  // for -v and reports
};

// Without a flag: do_sample false, or neither do_sample nor a temperature in the file, is greedy.
// A seed that was not given is drawn here. `tells`: the values, and flags that change nothing.
[[nodiscard]] SamplingSettings resolve_sampling(const SamplingOptions& options,
                                                const GenerationDefaults& defaults,
                                                bool tells = true);

}  // namespace fut::app
