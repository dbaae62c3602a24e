// What /set changes: the flags of sampling and of replies, by the names and with the ranges that they
// have on the command line.
#pragma once

#include <string>
#include <vector>

#include "apps/options.h"

namespace fut::app {

// Whether lines are stored, which is no flag's business here: change_setting() does not know it.
inline constexpr const char* kHistorySetting = "history";

// "temp", "top-p", ...: the flags' names without dashes; and kHistorySetting.
[[nodiscard]] std::vector<std::string> setting_names();

// Throws Usage for an unknown name (the nearest one is suggested) or a value out of range. A switch is
// on or off; `stop` without a value forgets the stop texts.
void change_setting(GenerateOptions& options, const std::string& name, const std::string& value);

}  // namespace fut::app
