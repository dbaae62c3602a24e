// The manual page.
#include <fmt/format.h>

#include "apps/flag_groups.h"
#include "apps/shell_texts.h"

namespace fut::app {
namespace {

// Nothing in it is taken for a request or an escape of roff.
std::string plain(std::string_view text) {
  std::string result;
  bool at_start = true;
  for (const char c : text) {
    if (at_start && (c == '.' || c == '\'')) result += "\\&";
    at_start = c == '\n';
    if (c == '\\')
      result += "\\e";
    else if (c == '-')
      result += "\\-";
    else
      result += c;
  }
  return result;
}

// Lines that help breaks by hand are one paragraph here; an empty line ends it.
std::string paragraphs(const std::string& notes) {
  std::string text;
  for (std::size_t at = 0; at < notes.size();) {
    const std::size_t end = std::min(notes.find('\n', at), notes.size());
    const std::string line = notes.substr(at, end - at);
    text += line.empty() ? ".PP\n" : plain(line) + "\n";
    at = end + 1;
  }
  return text;
}

std::string flags_text(const Command& command) {
  std::string text, section;
  for (const Flag& flag : command.flags) {
    if (flag.section != section) {
      section = flag.section;
      text += fmt::format(".PP\n{}:\n", plain(section));
    }
    std::string names;
    for (const std::string& name : flag.names) {
      names += fmt::format("{}\\fB{}\\fR", names.empty() ? "" : ", ", plain(name));
    }
    text += fmt::format(".TP\n{}{}\n{}\n", names,
                        flag.value.empty() ? "" : fmt::format(" \\fI{}\\fR", plain(flag.value)),
                        plain(flag.help));
  }
  return text;
}

}  // namespace

std::string manual_page(std::span<const Command> commands, std::string_view version) {
  std::string text = fmt::format(
      ".TH FUT 1 \"\" \"fut {}\" \"User Commands\"\n.SH NAME\nfut \\- run Llama models on one "
      "machine\n.SH SYNOPSIS\n",
      plain(version));
  for (const Command& c : commands.subspan(1)) {
    text += fmt::format(".B fut {}\n[flags]\n.br\n", plain(c.name));
  }
  text += ".SH COMMANDS\n";
  for (const Command& c : commands.subspan(1)) {
    // What every command's help ends with is said once.
    std::string notes = c.notes;
    if (notes.ends_with(kExitCodes))
      notes.resize(notes.size() - std::string_view(kExitCodes).size());
    text += fmt::format(".SS fut {}\n{}\n{}.PP\n{}", plain(c.name), plain(c.summary), flags_text(c),
                        paragraphs(notes));
  }
  text += ".SH OPTIONS\n" + flags_text(commands.front());
  text += ".SH EXIT STATUS AND ENVIRONMENT\n" + paragraphs(kExitCodes);
  return text +
         ".SH FILES\n.TP\n$XDG_CACHE_HOME/fut, ~/.cache/fut\nQuantised copies of checkpoints.\n"
         ".TP\n$XDG_STATE_HOME/fut/chat_history, ~/.local/state/fut/chat_history\nWhat was typed "
         "in "
         "chats.\n";
}

}  // namespace fut::app
