// From argv, the environment and a configuration file to one list of arguments for one command.
// Values stay as they were typed: CLI11 takes brackets, commas and empty words apart, so it never
// sees them. What the values mean is not decided here.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/flags.h"

namespace fut::app {

struct GivenFlag {
  const Flag* flag = nullptr;
  Argument argument;
  bool off = false;  // a switch with a false value: sets nothing, nor do lower levels set it
};

struct Resolved {
  const Command* command = nullptr;
  std::vector<GivenFlag> given;
  bool help = false;
};

// Value of an environment variable; nullopt when it is not set or empty.
using Environment = std::function<std::optional<std::string>(const std::string&)>;

// `words` is argv without the program's name; commands[0] is the program itself. The command line
// wins over the environment (FUT_ and the flag's name in capitals), which wins over the file that
// --config names. There, a switch has a value in words; a false one stands for the switch's --no-
// twin. A flag of a lower level that conflicts with one of a higher level is dropped.
// Throws Usage for unknown commands and flags (the nearest one is suggested), a flag given twice, a
// missing value and flags that exclude each other; Data for a configuration file that cannot be
// read.
[[nodiscard]] Resolved resolve_arguments(std::span<const std::string> words,
                                         std::span<const Command> commands,
                                         const Environment& environment);

// Whether JSON was asked for, read from words that may not parse: an error about them then is a
// JSON document too.
[[nodiscard]] bool json_was_requested(std::span<const std::string> words,
                                      const Environment& environment);

}  // namespace fut::app
