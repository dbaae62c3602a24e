// See the header.
#include "apps/completions.h"

#include "apps/flag_groups.h"
#include "apps/shell_texts.h"
#include "apps/version.h"
#include "kernels/error.h"

namespace fut::app {

Command completions_command(CompletionsOptions& o) {
  Command command{"completions",
                  "Print a script that completes fut's words in a shell",
                  "bash: . <(fut completions bash), in ~/.bashrc to have it always. zsh: fut "
                  "completions zsh > a "
                  "file\nnamed _fut in a folder of $fpath. fish: fut completions fish > "
                  "~/.config/fish/completions/fut.fish.\n",
                  {{{"--shell"},
                    "bash|zsh|fish",
                    kOutputSection,
                    "The shell; its name alone does too",
                    [&o](const Argument& a) {
                      constexpr Shell kShells[] = {Shell::Bash, Shell::Zsh, Shell::Fish};
                      o.shell = kShells[parse_choice(a, {"bash", "zsh", "fish"})];
                      o.given = true;
                    }}}};
  command.word = "--shell";
  return command;
}

Command man_command() {
  return {"man", "Print the manual page: fut man | man -l -", "", {}};
}

int completions(const CompletionsOptions& options, std::span<const Command> commands,
                Reporter& reporter) {
  if (!options.given)
    throw usage_error(
        "--shell is missing: fut completions bash, fut completions zsh or fut completions fish");
  switch (options.shell) {
    case Shell::Bash:
      return print(bash_completion(commands), reporter);
    case Shell::Zsh:
      return print(zsh_completion(commands), reporter);
    case Shell::Fish:
      break;
  }
  return print(fish_completion(commands), reporter);
}

int man(std::span<const Command> commands, Reporter& reporter) {
  return print(manual_page(commands, version()), reporter);
}

}  // namespace fut::app
