// What Tab offers behind a beginning: names of commands, of settings, of files. Knows no terminal.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fut::app {

struct Completion {
  std::string insert;                // what is certain, behind the cursor
  std::vector<std::string> choices;  // where more than one is possible
};

// Where a word of a command line may be completed: "/set te" by the settings, "/load x" by files.
struct CompletionWords {
  std::vector<std::string> commands;       // "/help"
  std::vector<std::string> settings;       // behind settings_command
  std::string settings_command;            // "/set"
  std::vector<std::string> file_commands;  // "/load"
};

// `before` is the line up to the cursor. Nothing where it is no command's beginning.
[[nodiscard]] Completion complete(std::string_view before, const CompletionWords& words);

}  // namespace fut::app
