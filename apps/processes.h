// Names of processes, for messages that tell who uses what.
#pragma once

#include <string>

namespace fut::app {

// Empty: there is no such process here; it may be in another container.
[[nodiscard]] std::string process_name(int pid);
// The same in words.
[[nodiscard]] std::string name_or_elsewhere(const std::string& name);

}  // namespace fut::app
