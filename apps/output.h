// Where results go: standard output or the file of --output-file. Every write and the close are
// checked; a lost result is an error, never a success.
#pragma once

#include <string>
#include <string_view>

namespace fut::app {

class Output {
 public:
  Output() = default;  // standard output
  // The file is opened now, so that a bad path fails before any work, and emptied when the first
  // byte is written. Throws Runtime with the reason.
  explicit Output(const std::string& path);
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output();

  // Unbuffered: the bytes are with the system when this returns. Throws Runtime.
  void write(std::string_view bytes);
  // Nothing follows. Throws Runtime where the system reports a lost write now.
  void finish();
  [[nodiscard]] bool is_terminal() const;

 private:
  void empty_file();
  [[noreturn]] void fail(std::string_view act, int error) const;

  int descriptor_ = 1;
  std::string name_ = "standard output";
  bool is_file_ = false;
  bool started_ = false;
};

// Puts something harmless in the place of standard streams that are closed, so that no file that is
// opened later takes their number. Reading then gives end of input, writing results fails.
void guard_standard_streams();

}  // namespace fut::app
