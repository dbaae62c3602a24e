// What other programs read about the command line, made from the tables that parsing and --help read:
// completion scripts and a manual page.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "apps/flags.h"

namespace fut::app {

// commands[0] is the program itself.
[[nodiscard]] std::string bash_completion(std::span<const Command> commands);
[[nodiscard]] std::string zsh_completion(std::span<const Command> commands);
[[nodiscard]] std::string fish_completion(std::span<const Command> commands);

// In the language of man(1).
[[nodiscard]] std::string manual_page(std::span<const Command> commands, std::string_view version);

}  // namespace fut::app
