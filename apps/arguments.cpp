// A small word-by-word reader over the flag tables. See the header for the rules.
#include "apps/arguments.h"

#include <algorithm>
#include <cctype>
#include <fstream>

#include "apps/suggest.h"
#include "kernels/error.h"

namespace fut::app {

const std::string& flag_name(const Flag& flag) {
  const auto found = std::find_if(flag.names.begin(), flag.names.end(),
                                  [](const std::string& name) { return name.starts_with("--"); });
  return found != flag.names.end() ? *found : flag.names.front();
}

namespace {

bool is_switch(const Flag& flag) {
  return flag.value.empty();
}

// A word that can only be meant as a flag. "-", "-1", "-.5" and "- text" are values.
bool looks_like_flag(std::string_view word) {
  if (word.size() < 2 || word[0] != '-') return false;
  const char next = word[1] == '-' && word.size() > 2 ? word[2] : word[1];
  return std::isalpha(static_cast<unsigned char>(next)) != 0;
}

const Flag* find_flag(const Command& command, std::string_view name) {
  for (const Flag& flag : command.flags) {
    if (std::find(flag.names.begin(), flag.names.end(), name) != flag.names.end()) return &flag;
  }
  return nullptr;
}

std::vector<std::string> all_names(const Command& command) {
  std::vector<std::string> names;
  for (const Flag& flag : command.flags) {
    names.insert(names.end(), flag.names.begin(), flag.names.end());
  }
  names.emplace_back("--help");
  return names;
}

Error unknown_flag(const Command& command, std::span<const Command> commands,
                   std::string_view word) {
  const std::string program = command.name.empty() ? "fut" : "fut " + command.name;
  if (command.name.empty()) {
    for (const Command& other : commands) {
      if (find_flag(other, word) != nullptr && !other.name.empty()) {
        return usage_error("{} belongs after a command: fut {} {}", word, other.name, word);
      }
    }
  }
  for (const Command& other : commands) {
    if (find_flag(other, word) == nullptr || other.name.empty()) continue;
    return usage_error(
        "{}: unknown flag {}; it is one of fut {}, and {} --help lists what there is", program,
        word, other.name, program);
  }
  const auto near = nearest_name(word, all_names(command));
  if (near) return usage_error("{}: unknown flag {}; did you mean {}?", program, word, *near);
  return usage_error("{}: unknown flag {}; {} --help lists what there is", program, word, program);
}

const Command& find_command(std::span<const Command> commands, const std::string& word) {
  std::vector<std::string> names;
  for (const Command& command : commands) {
    if (command.name.empty()) continue;
    if (command.name == word) return command;
    names.push_back(command.name);
  }
  const auto near = nearest_name(word, names);
  if (near) throw usage_error("unknown command '{}'; did you mean fut {}?", word, *near);
  throw usage_error("unknown command '{}'; there are {}", word, fmt::join(names, ", "));
}

// Reads the words of one command line, front to back.
class WordReader {
 public:
  WordReader(const Command& command, std::span<const Command> commands,
             std::span<const std::string> words)
      : command_(command), commands_(commands), words_(words) {}

  Resolved read() {
    Resolved resolved{&command_, {}, false};
    while (next_ < words_.size() && !resolved.help) read_word(words_[next_++], resolved);
    return resolved;
  }

 private:
  void read_word(const std::string& word, Resolved& resolved) {
    if (word == "-h" || word == "--help") {
      resolved.help = true;
    } else if (!looks_like_flag(word) && !command_.word.empty()) {
      resolved.given.push_back({find_flag(command_, command_.word), Argument{word, command_.word}});
    } else if (!looks_like_flag(word)) {
      throw usage_error("fut {}: '{}' belongs to no flag; {}", command_.name, word, word_hint());
    } else if (!read_whole_word(word, resolved) && !read_switches(word, resolved)) {
      throw unknown_flag(command_, commands_, word.substr(0, word.find('=')));
    }
  }

  // What a word without a flag may have been meant for.
  [[nodiscard]] std::string word_hint() const {
    const auto has = [&](const char* flag) { return find_flag(command_, flag) != nullptr; };
    std::vector<std::string> hints;
    if (has("-p")) {
      hints.emplace_back("a prompt is given with -p");
    } else if (has("-f")) {
      hints.emplace_back("a text file is given with -f");
    }
    if (has("-m")) hints.emplace_back("a model is given with -m");
    if (hints.empty()) return fmt::format("fut {} --help lists its flags", command_.name);
    return fmt::format("{}", fmt::join(hints, ", "));
  }

  // "--temp 1", "--temp=1", "-n 5", "-n=5", "-sys TEXT", "-n5".
  bool read_whole_word(const std::string& word, Resolved& resolved) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (const Flag* flag = find_flag(command_, name)) {
      const bool attached = equals != std::string::npos;
      add(*flag, name, attached ? std::optional(word.substr(equals + 1)) : std::nullopt, resolved);
      return true;
    }
    const Flag* flag = find_flag(command_, word.substr(0, 2));
    if (flag == nullptr || is_switch(*flag)) return false;
    // Only what cannot be a mistyped flag is taken for a value without a blank before it.
    if (std::isdigit(static_cast<unsigned char>(word[2])) == 0 && word[2] != '-') return false;
    add(*flag, word.substr(0, 2), word.substr(2), resolved);
    return true;
  }

  // "-vv"
  bool read_switches(const std::string& word, Resolved& resolved) {
    if (word.starts_with("--")) return false;
    std::vector<const Flag*> flags;
    for (const char letter : word.substr(1)) {
      const Flag* flag = find_flag(command_, std::string("-") + letter);
      if (flag == nullptr || !is_switch(*flag)) return false;
      flags.push_back(flag);
    }
    for (const Flag* flag : flags) add(*flag, flag_name(*flag), std::nullopt, resolved);
    return true;
  }

  void add(const Flag& flag, const std::string& spelling, std::optional<std::string> value,
           Resolved& resolved) {
    if (is_switch(flag)) {
      if (value) throw usage_error("{} takes no value, got '{}'", spelling, *value);
      resolved.given.push_back({&flag, Argument{{}, spelling}});
      return;
    }
    if (!value) {
      if (next_ == words_.size()) throw usage_error("{} needs a value: {}", spelling, flag.value);
      if (looks_like_flag(words_[next_])) {
        throw usage_error(
            "{} needs a value and '{}' looks like a flag; a value that starts with a "
            "dash is written {}={}",
            spelling, words_[next_], spelling, words_[next_]);
      }
      value = words_[next_++];
    }
    resolved.given.push_back({&flag, Argument{std::move(*value), spelling}});
  }

  const Command& command_;
  std::span<const Command> commands_;
  std::span<const std::string> words_;
  std::size_t next_ = 0;
};

bool conflict(const GivenFlag& first, const GivenFlag& second) {
  if (first.off || second.off) return false;
  const Flag& a = *first.flag;
  const Flag& b = *second.flag;
  const auto names = [](const Flag& flag, const std::string& other) {
    return std::find(flag.conflicts.begin(), flag.conflicts.end(), other) != flag.conflicts.end();
  };
  return names(a, flag_name(b)) || names(b, flag_name(a));
}

void check_one_level(const std::vector<GivenFlag>& given) {
  for (std::size_t i = 0; i < given.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Flag& a = *given[j].flag;
      const Flag& b = *given[i].flag;
      if (&a == &b && !a.repeatable) {
        throw usage_error("{} is given twice (first as {}); give it once", given[i].argument.source,
                          given[j].argument.source);
      }
      if (conflict(given[j], given[i])) {
        throw usage_error("{} and {} exclude each other; give one of them",
                          given[j].argument.source, given[i].argument.source);
      }
    }
  }
}

// Adds the arguments of a lower level: those of flags that the higher levels leave free.
void merge_lower_level(std::vector<GivenFlag>& given, std::vector<GivenFlag> lower) {
  check_one_level(lower);
  const std::size_t higher = given.size();
  for (GivenFlag& candidate : lower) {
    const bool taken = std::any_of(
        given.begin(), given.begin() + static_cast<std::ptrdiff_t>(higher),
        [&](const GivenFlag& g) { return g.flag == candidate.flag || conflict(g, candidate); });
    if (!taken) given.push_back(std::move(candidate));
  }
}

std::string variable_name(std::string_view name) {
  std::string variable = "FUT_";
  for (const char c : name.substr(2)) {
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return variable;
}

bool means_on(std::string_view text) {
  return text == "1" || text == "true" || text == "on" || text == "yes";
}

// A switch in the environment or in a file: on or off in words.
bool is_on(const Argument& argument) {
  if (means_on(argument.text)) return true;
  for (const std::string_view off : {"0", "false", "off", "no"}) {
    if (argument.text == off) return false;
  }
  throw usage_error("{}: '{}' is neither on nor off; allowed: 1, true, on, yes, 0, false, off, no",
                    argument.source, argument.text);
}

// A false value is the --no- twin; without a twin the switch keeps its default, which is off.
void add_worded(const Command& command, const Flag& flag, Argument argument,
                std::vector<GivenFlag>& given) {
  argument.typed = false;
  if (!is_switch(flag)) {
    given.push_back({&flag, std::move(argument)});
    return;
  }
  const bool on = is_on(argument);
  argument.text.clear();
  const Flag* twin = on ? nullptr : find_flag(command, "--no-" + flag_name(flag).substr(2));
  given.push_back({twin != nullptr ? twin : &flag, std::move(argument), !on && twin == nullptr});
}

std::vector<GivenFlag> read_environment(const Command& command, const Environment& environment) {
  std::vector<GivenFlag> given;
  for (const Flag& flag : command.flags) {
    for (const std::string& name : flag.names) {
      if (!name.starts_with("--")) continue;
      const std::string variable = variable_name(name);
      if (auto value = environment(variable)) {
        add_worded(command, flag, Argument{std::move(*value), variable}, given);
        break;
      }
    }
  }
  return given;
}

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// `name = value` a line, names as the long flags without dashes; '#' starts a comment line.
std::vector<GivenFlag> read_config_file(const Command& command, std::span<const Command> commands,
                                        const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw data_error("{}: the file of --config cannot be opened", path);
  std::vector<GivenFlag> given;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    line = trimmed(line);
    if (line.empty() || line[0] == '#') continue;
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) {
      throw data_error("{}:{}: '{}' is not of the form name = value", path, number, line);
    }
    const std::string name = "--" + trimmed(line.substr(0, equals));
    const Flag* flag = find_flag(command, name);
    if (flag != nullptr && flag_name(*flag) != "--config") {
      const std::string source = fmt::format("{}:{} ({})", path, number, name.substr(2));
      add_worded(command, *flag, Argument{trimmed(line.substr(equals + 1)), source}, given);
      continue;
    }
    // One file may serve every command: what another command knows is passed over.
    const bool known_elsewhere =
        std::any_of(commands.begin(), commands.end(),
                    [&](const Command& c) { return find_flag(c, name) != nullptr; });
    if (known_elsewhere && name != "--config") continue;
    std::vector<std::string> settings = all_names(command);
    std::erase_if(settings, [](const std::string& n) { return !n.starts_with("--"); });
    const auto near = nearest_name(name, settings);
    throw usage_error("{}:{}: unknown setting '{}'{}", path, number, name.substr(2),
                      near ? fmt::format("; did you mean {}?", near->substr(2)) : "");
  }
  if (file.bad()) throw data_error("{}: the file of --config cannot be read", path);
  return given;
}

}  // namespace

Resolved resolve_arguments(std::span<const std::string> words, std::span<const Command> commands,
                           const Environment& environment) {
  const Command& program = commands.front();
  if (words.empty()) {
    throw usage_error(
        "no command given; fut run -p TEXT is the shortest one, fut --help lists all");
  }
  const bool has_command = !looks_like_flag(words[0]);
  const Command& command = has_command ? find_command(commands, words[0]) : program;
  Resolved resolved = WordReader(command, commands, words.subspan(has_command ? 1 : 0)).read();
  if (resolved.help || !has_command) {
    check_one_level(resolved.given);
    return resolved;
  }
  check_one_level(resolved.given);
  merge_lower_level(resolved.given, read_environment(command, environment));
  for (const GivenFlag& g : resolved.given) {
    if (flag_name(*g.flag) != "--config") continue;
    merge_lower_level(resolved.given, read_config_file(command, commands, g.argument.text));
    break;
  }
  return resolved;
}

bool json_was_requested(std::span<const std::string> words, const Environment& environment) {
  const auto is_json = [](std::string_view text) { return text == "json" || text == "jsonl"; };
  // There, -o is a folder, or there is none.
  if (!words.empty() && (words[0] == "quantize" || words[0] == "selftest")) {
    return std::find(words.begin(), words.end(), "--json") != words.end() ||
           means_on(environment("FUT_JSON").value_or(""));
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "-o" || word == "--output") return i + 1 < words.size() && is_json(words[i + 1]);
    for (const std::string_view prefix : {"-o=", "--output="}) {
      if (word.starts_with(prefix)) return is_json(word.substr(prefix.size()));
    }
  }
  const auto value = environment("FUT_OUTPUT");
  return value && is_json(*value);
}

}  // namespace fut::app
