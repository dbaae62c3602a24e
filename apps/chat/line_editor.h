// One entry typed at a terminal, with editing, history and completion by libedit. Pasted text arrives
// whole: the terminal marks its beginning and end (bracketed paste), which libedit does not know, so
// the beginning is bound to a function of ours that reads up to the end. Messages and echo are on
// standard error; standard output is not touched.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/chat/completion.h"
#include "apps/line_reader.h"

namespace fut::app {

class LineEditor {
 public:
  // Whether both ends are terminals that can move a cursor.
  [[nodiscard]] static bool works_here();

  using Completer = std::function<Completion(std::string_view before)>;
  explicit LineEditor(Completer completer);
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;
  ~LineEditor();

  // What the up arrow brings back; the newest last.
  void remember(const std::string& entry);

  struct Prompt {
    std::string text;
    std::string color;  // an escape sequence; empty: none
  };
  // Waits for an entry; newlines of pasted text stay in it. `had_text`: where Interrupted, whether
  // something was typed, which is gone then.
  [[nodiscard]] LineReader::Outcome next(const Prompt& prompt, std::string& entry, bool& had_text);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fut::app
