// Lines from standard input, of any length and any bytes. Reads no byte past the line that it
// returns, so that what follows is left for others.
#pragma once

#include <string>

namespace fut::app {

class LineReader {
 public:
  enum class Outcome {
    Line,         // without its newline; a last line without one counts
    End,          // nothing left
    Interrupted,  // a signal is pending; what was read of a line is kept
  };

  LineReader();
  // Throws Runtime where reading fails.
  [[nodiscard]] Outcome next(std::string& line);
  [[nodiscard]] bool is_terminal() const { return is_terminal_; }

 private:
  bool is_terminal_;
  bool ended_ = false;
  std::string partial_;
};

}  // namespace fut::app
