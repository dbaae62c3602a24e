// Turns from standard input: by the line editor on a terminal that can do it, else line by line. A line
// that begins with """ opens a block that ends with a line that ends with """.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "apps/chat/line_editor.h"
#include "apps/line_reader.h"
#include "apps/logging.h"

namespace fut::app {

class ChatInput {
 public:
  // `history_file` empty: nothing is stored.
  ChatInput(ColorMode color, std::filesystem::path history_file, LineEditor::Completer completer);

  [[nodiscard]] bool is_terminal() const { return reader_.is_terminal(); }
  // `gauge` stands before the prompt's "> ", `color` is its escape sequence.
  [[nodiscard]] LineReader::Outcome next_turn(const std::string& gauge, std::string& text);
  // The last turn was a block: never a command.
  [[nodiscard]] bool was_block() const { return was_block_; }
  // Of the last line that was read, from 1.
  [[nodiscard]] int line_number() const { return line_number_; }
  // A short answer that no history remembers.
  [[nodiscard]] LineReader::Outcome ask(const std::string& question, std::string& answer);
  // Whether the last interrupt took typed text away.
  [[nodiscard]] bool had_text() const { return had_text_; }

  void store_history(bool on) { stores_ = on; }
  [[nodiscard]] bool stores_history() const { return editor_ && stores_ && !history_file_.empty(); }
  [[nodiscard]] const std::filesystem::path& history_file() const { return history_file_; }

 private:
  [[nodiscard]] LineReader::Outcome next_line(const std::string& prompt, std::string& line);
  void remember(const std::string& text);

  bool color_;
  std::filesystem::path history_file_;
  bool stores_ = true;
  bool had_text_ = false;
  bool was_block_ = false;
  int line_number_ = 0;
  std::string last_;
  LineReader reader_;
  std::unique_ptr<LineEditor> editor_;  // null: line by line
};

}  // namespace fut::app
