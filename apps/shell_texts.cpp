// Completion scripts. They hold words alone and ask the binary nothing, so Tab stays quick; where a value
// is a file or a folder the shell's own completion does the rest.
#include "apps/shell_texts.h"

#include <cctype>
#include <fmt/format.h>
#include <vector>

namespace fut::app {
namespace {

enum class ValueKind { None, Words, File, Folder, Other };

// "auto|cpu|cuda[:N]" without what stands for something, which is written large.
std::vector<std::string> words_of(const Flag& flag) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : flag.value + "|") {
    if (c != '|') {
      word += c;
      continue;
    }
    word.erase(std::min(word.find('['), word.size()));
    if (!word.empty() && std::islower(static_cast<unsigned char>(word[0])) != 0) {
      words.push_back(word);
    }
    word.clear();
  }
  return words;
}

// What follows a flag: "text|json" is a choice, "FILE" a file, "PRECISION|DIR" a folder or another thing.
ValueKind kind_of(const Flag& flag) {
  const std::string& v = flag.value;
  if (v.empty()) return ValueKind::None;
  if (v.find('|') != v.npos && !words_of(flag).empty()) return ValueKind::Words;
  if (v.find("FILE") != v.npos || v.find(".json") != v.npos) return ValueKind::File;
  if (v == "MODEL" || v.find("DIR") != v.npos || v == "FOLDER") return ValueKind::Folder;
  return ValueKind::Other;
}

// In single quotes of a shell.
std::string quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'')
      result += "'\\''";
    else
      result += c;
  }
  return result + "'";
}

// What zsh takes between the brackets of a description.
std::string bracketed(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':') result += '\\';
    result += c;
  }
  return result;
}

std::vector<std::string> command_names(std::span<const Command> commands) {
  std::vector<std::string> names;
  for (const Command& c : commands.subspan(1)) names.push_back(c.name);
  return names;
}

std::string flag_words(const Command& command) {
  std::string words = "-h --help";
  for (const Flag& flag : command.flags) {
    for (const std::string& name : flag.names) words += " " + name;
  }
  return words;
}

const Flag* word_flag(const Command& command) {
  for (const Flag& flag : command.flags) {
    if (!command.word.empty() && flag_name(flag) == command.word) return &flag;
  }
  return nullptr;
}

// The cases of one command's flags that take a value, for bash.
std::string bash_values(const Command& command) {
  std::string text;
  for (const Flag& flag : command.flags) {
    const ValueKind kind = kind_of(flag);
    if (kind == ValueKind::None) continue;
    std::string reply = "return";
    if (kind == ValueKind::Words) {
      reply = fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$now\")); return",
                          fmt::join(words_of(flag), " "));
    } else if (kind == ValueKind::File) {
      reply = "compopt -o default; return";
    } else if (kind == ValueKind::Folder) {
      reply = "compopt -o nospace; COMPREPLY=($(compgen -d -S / -- \"$now\")); return";
    }
    text += fmt::format("        {}) {} ;;\n", fmt::join(flag.names, "|"), reply);
  }
  return text;
}

}  // namespace

std::string bash_completion(std::span<const Command> commands) {
  std::string text =
      "# Completion of fut for bash: . <(fut completions bash)\n_fut() {\n"
      "  local now=\"${COMP_WORDS[COMP_CWORD]}\" before=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
      "  COMPREPLY=()\n";
  text += fmt::format(
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen -W '{} {}' -- \"$now\"))\n"
      "    return\n  fi\n  case \"${{COMP_WORDS[1]}}\" in\n",
      fmt::join(command_names(commands), " "), flag_words(commands.front()));
  for (const Command& command : commands.subspan(1)) {
    text += fmt::format("    {})\n", command.name);
    const std::string values = bash_values(command);
    if (!values.empty()) text += "      case \"$before\" in\n" + values + "      esac\n";
    const Flag* word = word_flag(command);
    const bool is_file = word != nullptr && kind_of(*word) == ValueKind::File;
    const std::string choices =
        word == nullptr || is_file ? "" : fmt::format(" {}", fmt::join(words_of(*word), " "));
    text += fmt::format("      {}COMPREPLY=($(compgen -W '{}{}' -- \"$now\"){}) ;;\n",
                        is_file ? "compopt -o filenames; " : "", flag_words(command), choices,
                        is_file ? " $(compgen -f -- \"$now\")" : "");
  }
  return text + "  esac\n}\ncomplete -F _fut fut\n";
}

std::string zsh_completion(std::span<const Command> commands) {
  std::string text =
      "#compdef fut\n# Completion of fut for zsh: fut completions zsh > a file _fut in "
      "$fpath\n_fut() "
      "{\n  local line state\n  _arguments -C '1:command:->command' '*::flag:->flags'\n"
      "  case $state in\n    command)\n      local -a commands=(\n";
  for (const Command& c : commands.subspan(1)) {
    text += "        " + quoted(c.name + ":" + c.summary) + "\n";
  }
  text += "      )\n      _describe command commands ;;\n    flags)\n      case $line[1] in\n";
  for (const Command& command : commands.subspan(1)) {
    text += fmt::format("        {})\n          _arguments", command.name);
    for (const Flag& flag : command.flags) {
      const ValueKind kind = kind_of(flag);
      std::string action;
      if (kind == ValueKind::Words) {
        action = fmt::format(":value:({})", fmt::join(words_of(flag), " "));
      } else if (kind == ValueKind::File) {
        action = ":file:_files";
      } else if (kind == ValueKind::Folder) {
        action = ":folder:_files -/";
      } else if (kind == ValueKind::Other) {
        action = ":" + bracketed(flag.value) + ":";
      }
      for (const std::string& name : flag.names) {
        text += " \\\n            " + quoted((flag.repeatable ? "*" : "") + name + "[" +
                                             bracketed(flag.help) + "]" + action);
      }
    }
    if (const Flag* word = word_flag(command)) {
      const std::string action = kind_of(*word) == ValueKind::File
                                     ? "_files"
                                     : fmt::format("({})", fmt::join(words_of(*word), " "));
      text += " \\\n            " + quoted(fmt::format("1:{}:{}", command.word.substr(2), action));
    }
    text += " ;;\n";
  }
  // From a folder of $fpath the file is the function's first call; sourced, it only defines.
  return text +
         "      esac ;;\n  esac\n}\nif [ \"$funcstack[1]\" = _fut ]; then _fut \"$@\"; else "
         "compdef "
         "_fut fut; fi\n";
}

std::string fish_completion(std::span<const Command> commands) {
  std::string text =
      "# Completion of fut for fish: fut completions fish | source\ncomplete -c fut -f\n";
  for (const Command& c : commands.subspan(1)) {
    text += fmt::format("complete -c fut -n __fish_use_subcommand -a {} -d {}\n", c.name,
                        quoted(c.summary));
  }
  for (const Command& command : commands.subspan(1)) {
    const std::string begin =
        fmt::format("complete -c fut -n '__fish_seen_subcommand_from {}'", command.name);
    for (const Flag& flag : command.flags) {
      std::string line = begin;
      for (const std::string& name : flag.names) {
        if (name.starts_with("--"))
          line += " -l " + name.substr(2);
        else if (name.size() == 2)
          line += " -s " + name.substr(1);
        else
          line += " -o " + name.substr(1);
      }
      const ValueKind kind = kind_of(flag);
      if (kind == ValueKind::Words) {
        line += fmt::format(" -x -a '{}'", fmt::join(words_of(flag), " "));
      } else if (kind == ValueKind::File || kind == ValueKind::Folder) {
        line += " -r -F";
      } else if (kind == ValueKind::Other) {
        line += " -x";
      }
      text += line + " -d " + quoted(flag.help) + "\n";
    }
    if (const Flag* word = word_flag(command)) {
      text += kind_of(*word) == ValueKind::File
                  ? begin + " -F\n"
                  : fmt::format("{} -a '{}'\n", begin, fmt::join(words_of(*word), " "));
    }
  }
  return text;
}

}  // namespace fut::app
