// Runs a program as a user or a script would: arguments, environment, standard input of every kind,
// signals, a pseudo-terminal. Reports what came out, when, and how the program ended.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <termios.h>
#include <vector>

namespace fut::test {

// Generous: the sanitizer builds run these too, on loaded machines.
inline constexpr std::chrono::seconds kProcessTimeout{120};

struct ProcessOptions {
  std::vector<std::string> arguments;
  // Variables to set, or with nullopt to remove; the rest is inherited. FUT_ variables, NO_COLOR
  // and those that name a Hugging Face cache are never inherited.
  std::map<std::string, std::optional<std::string>> environment;

  enum class Input {
    Bytes,     // `input`, then end of input (empty: end of input at once)
    Open,      // a pipe that stays open; write() and close_input() feed it
    Closed,    // no descriptor 0 at all
    Terminal,  // the pseudo-terminal
  };
  Input input_kind = Input::Bytes;
  std::string input;

  enum class Output {
    Pipe,
    File,      // `output_path`
    Closed,    // no descriptor 1 at all
    Terminal,  // the pseudo-terminal
  };
  Output output_kind = Output::Pipe;
  std::filesystem::path output_path;
  bool error_to_terminal = false;  // standard error too

  std::chrono::milliseconds timeout = kProcessTimeout;
};

// Bytes that one read from the program's standard output gave.
struct OutputChunk {
  double seconds = 0;  // since the start
  std::string bytes;
};

struct ProcessResult {
  int exit_code = -1;  // -1: ended by a signal
  int signal = 0;      // that ended it; 0: it left by itself
  bool timed_out = false;
  double seconds = 0;
  long max_memory_kib = 0;
  std::string out;
  std::string err;
  std::string terminal;  // what the pseudo-terminal showed, echo included
  std::vector<OutputChunk> chunks;
};

// Runs to the end.
[[nodiscard]] ProcessResult run_process(const std::filesystem::path& program,
                                        const ProcessOptions& options);

// A program under way, for tests that answer or send signals. The destructor kills it.
class Process {
 public:
  Process(const std::filesystem::path& program, ProcessOptions options);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();

  // Types bytes into the terminal or the open pipe.
  void write(std::string_view bytes);
  void close_input();
  void send_signal(int signal) const;
  // The terminal's size from now on.
  void resize(int columns, int rows) const;
  [[nodiscard]] pid_t pid() const { return pid_; }
  // Whether the terminal has the modes (echo, lines, signals, ...) that it had before the program began.
  // The system restores them itself when the program is gone: for programs that a shell waits for.
  [[nodiscard]] bool terminal_is_as_before() const;

  // Waits until `text` stands in what came after the last match on the named stream, and takes
  // everything up to its end as matched. False when the program ends or the time is over first.
  bool wait_for_output(std::string_view text);
  bool wait_for_error(std::string_view text);
  bool wait_for_terminal(std::string_view text);

  // Waits for the end and returns everything.
  ProcessResult finish();

 private:
  struct Stream {
    int descriptor = -1;
    std::string* bytes = nullptr;
    std::size_t matched = 0;
  };
  struct ChildStreams;
  [[noreturn]] static void become(const ChildStreams& streams, const char* program,
                                  char* const* arguments, char* const* variables);
  void connect_terminal(ChildStreams& child);
  void connect_input(ChildStreams& child);
  void connect_output(ChildStreams& child);
  void connect_error(ChildStreams& child);
  bool wait_for(Stream& stream, std::string_view text);
  bool pump(int wait_ms);  // false: nothing is left to read
  void read_stream(Stream& stream);
  void feed();
  [[nodiscard]] double seconds() const;
  [[nodiscard]] bool out_of_time() const;

  ProcessOptions options_;
  ProcessResult result_;
  std::chrono::steady_clock::time_point start_;
  pid_t pid_ = -1;
  int input_ = -1;  // our end of the pipe
  std::size_t fed_ = 0;
  Stream out_, err_, terminal_;
  termios modes_before_ = {};
};

}  // namespace fut::test
