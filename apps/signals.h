// Interrupts as flags that loops look at. A handler sets two atomics and does nothing else, so the
// state is the one kind of global that a signal handler can reach.
#pragma once

#include <atomic>
#include <exception>
#include <string>
#include <utility>

namespace fut::app {

// Thrown by throw_if_interrupted(); main turns it into exit code 128 + signal. The message tells what was
// done by then; empty: main knows what an interrupted command leaves.
class Interrupted : public std::exception {
 public:
  explicit Interrupted(int signal, std::string message = {})
      : signal_(signal), message_(std::move(message)) {}
  [[nodiscard]] int signal() const noexcept { return signal_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  [[nodiscard]] const char* what() const noexcept override { return "interrupted"; }

 private:
  int signal_;
  std::string message_;
};

// SIGINT, SIGTERM and, where it is not ignored already, SIGHUP set the flag. SIGPIPE and SIGXFSZ are ignored: the write that they stand for
// fails with an error that can be reported.
void install_signal_handlers();

[[nodiscard]] const std::atomic<bool>& stop_flag();
// The one that set it, 0: none. take_signal() also clears it and the flag.
[[nodiscard]] int pending_signal();
int take_signal();
void throw_if_interrupted();

[[nodiscard]] int exit_code_of_signal(int signal);

}  // namespace fut::app
