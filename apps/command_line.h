// The command line as CLI11 sees it: the tree of commands, their help, and the order to set what
// was given. The only file pair that includes CLI11. Values pass it by as numbers (arguments.h says
// why).
#pragma once

#include <span>
#include <string>

#include "apps/arguments.h"

namespace fut::app {

// What `fut --help` or `fut COMMAND --help` prints.
[[nodiscard]] std::string help_text(std::span<const Command> commands, const Command& command);

// Calls Flag::set for every argument, in the order of the flag tables. Throws what they throw.
void apply_arguments(std::span<const Command> commands, const Resolved& resolved);

}  // namespace fut::app
