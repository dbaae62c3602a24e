// See the header.
#include "apps/chat/input.h"

#include "apps/chat/history_file.h"

namespace fut::app {
namespace {

constexpr std::string_view kFence = "\"\"\"";
constexpr const char* kBold = "\033[1m";

void drop_return(std::string& line) {
  if (line.ends_with('\r')) line.pop_back();
}

}  // namespace

ChatInput::ChatInput(ColorMode color, std::filesystem::path history_file,
                     LineEditor::Completer completer)
    : color_(use_color(color)), history_file_(std::move(history_file)) {
  if (!LineEditor::works_here()) return;
  editor_ = std::make_unique<LineEditor>(std::move(completer));
  for (const std::string& entry : read_history(history_file_)) editor_->remember(entry);
}

LineReader::Outcome ChatInput::next_line(const std::string& prompt, std::string& line) {
  had_text_ = false;
  ++line_number_;
  if (editor_) return editor_->next({prompt, color_ ? kBold : ""}, line, had_text_);
  if (is_terminal()) {
    write_to_standard_error(color_ ? fmt::format("{}{}\033[0m", kBold, prompt) : prompt);
  }
  return reader_.next(line);
}

LineReader::Outcome ChatInput::next_turn(const std::string& gauge, std::string& text) {
  const LineReader::Outcome outcome = next_line(gauge + "> ", text);
  if (outcome != LineReader::Outcome::Line) return outcome;
  drop_return(text);
  was_block_ = text.starts_with(kFence);
  if (was_block_) {
    // A block may have come whole, from the history or by pasting.
    std::string rest = text.substr(kFence.size());
    while (!rest.ends_with(kFence)) {
      std::string line;
      const LineReader::Outcome more = next_line("... ", line);
      if (more == LineReader::Outcome::Interrupted) {
        had_text_ = true;
        return more;
      }
      if (more == LineReader::Outcome::End) {
        rest += kFence;  // what was said so far counts
        break;
      }
      drop_return(line);
      rest += (rest.empty() ? "" : "\n") + line;
    }
    rest.resize(rest.size() - kFence.size());
    if (rest.starts_with('\n')) rest.erase(0, 1);
    if (rest.ends_with('\n')) rest.pop_back();
    remember(fmt::format("{}{}{}", kFence, rest, kFence));
    text = std::move(rest);
    return LineReader::Outcome::Line;
  }
  remember(text);
  return LineReader::Outcome::Line;
}

LineReader::Outcome ChatInput::ask(const std::string& question, std::string& answer) {
  return next_line(question, answer);
}

void ChatInput::remember(const std::string& text) {
  if (!editor_ || text.find_first_not_of(" \t\n") == text.npos || text == last_) return;
  last_ = text;
  editor_->remember(text);
  if (!stores_history() || append_history(history_file_, text)) return;
  log_warning("{}: the history cannot be written; going on without", history_file_.string());
  stores_ = false;
}

}  // namespace fut::app
