// See the header.
#include "apps/command_line.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>

#include "kernels/error.h"

namespace fut::app {
namespace {

constexpr std::size_t kHelpColumn = 36;

bool is_single_dash_word(const std::string& name) {
  return name.size() > 2 && name[1] != '-';
}

// "-n,--n-predict": the names that CLI11 can hold.
std::string cli11_names(const Flag& flag) {
  std::string names;
  for (const std::string& name : flag.names) {
    if (is_single_dash_word(name)) continue;
    if (!names.empty()) names += ',';
    names += name;
  }
  return names;
}

std::string help_of(const Flag& flag) {
  std::string help = flag.help;
  for (const std::string& name : flag.names) {
    if (is_single_dash_word(name)) help += " (short: " + name + ")";
  }
  return help;
}

const Argument& argument_number(const Resolved& resolved, const std::string& number) {
  std::size_t i = 0;
  std::from_chars(number.data(), number.data() + number.size(), i);
  return resolved.given.at(i).argument;
}

void add_flag(CLI::App& app, const Flag& flag, const Resolved& resolved) {
  CLI::Option* option = nullptr;
  if (flag.value.empty()) {
    option = app.add_flag_function(
        cli11_names(flag),
        [&flag, &resolved](std::int64_t) {
          for (const GivenFlag& g : resolved.given) {
            if (g.flag == &flag && !g.off) flag.set(g.argument);
          }
        },
        help_of(flag));
  } else {
    option = app.add_option_function<std::vector<std::string>>(
        cli11_names(flag),
        [&flag, &resolved](const std::vector<std::string>& numbers) {
          for (const std::string& number : numbers) flag.set(argument_number(resolved, number));
        },
        help_of(flag));
    option->option_text(flag.value);
  }
  option->group(flag.section);
}

// CLI11's objects refer to the tables and to `resolved`; neither may move while they live.
std::unique_ptr<CLI::App> make_app(std::span<const Command> commands, const Resolved& resolved) {
  auto app = std::make_unique<CLI::App>(commands.front().summary, "fut");
  app->get_formatter()->column_width(kHelpColumn);
  for (const Command& command : commands) {
    CLI::App* target = app.get();
    if (!command.name.empty()) target = app->add_subcommand(command.name, command.summary);
    target->footer(command.notes);
    target->set_help_flag("-h,--help", "Print this and leave");
    for (const Flag& flag : command.flags) add_flag(*target, flag, resolved);
  }
  return app;
}

}  // namespace

std::string help_text(std::span<const Command> commands, const Command& command) {
  const Resolved nothing;
  const auto app = make_app(commands, nothing);
  return command.name.empty() ? app->help() : app->get_subcommand(command.name)->help("fut");
}

void apply_arguments(std::span<const Command> commands, const Resolved& resolved) {
  const auto app = make_app(commands, resolved);
  std::vector<std::string> words;
  if (!resolved.command->name.empty()) words.push_back(resolved.command->name);
  for (std::size_t i = 0; i < resolved.given.size(); ++i) {
    if (resolved.given[i].off) continue;
    const Flag& flag = *resolved.given[i].flag;
    words.push_back(flag_name(flag));
    if (!flag.value.empty()) words.push_back(std::to_string(i));
  }
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    app->parse(std::move(words));
  } catch (const CLI::ParseError& e) {
    throw usage_error("{}", e.what());
  }
}

}  // namespace fut::app
