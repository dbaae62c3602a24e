// fut completions and fut man: texts for other programs.
#pragma once

#include <span>

#include "apps/flags.h"
#include "apps/reporter.h"

namespace fut::app {

enum class Shell { Bash, Zsh, Fish };

struct CompletionsOptions {
  Shell shell = Shell::Bash;
  bool given = false;
};

[[nodiscard]] Command completions_command(CompletionsOptions& options);
[[nodiscard]] Command man_command();

int completions(const CompletionsOptions& options, std::span<const Command> commands,
                Reporter& reporter);
int man(std::span<const Command> commands, Reporter& reporter);

}  // namespace fut::app
