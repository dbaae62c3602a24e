// The one exception type of the program. Included by every folder; includes nothing of the project.
//
// A message says four things: what failed (file, tensor, position), the two numbers that disagree,
// the likely cause, and what to do next. It is one line; `main` prints it to standard error and
// leaves with the exit code that the kind stands for. Nothing else in the program prints errors.
#pragma once

#include <fmt/format.h>
#include <stdexcept>
#include <string>
#include <utility>

namespace fut {

// The value of each kind is the exit code of the process.
enum class ErrorKind {
  Runtime = 1,  // failed while running: a read that failed, a write that was lost, a broken promise
  Usage = 2,    // the command line is wrong: unknown flag, value out of range
  Data = 3,     // model, tokenizer, template or input data is invalid or missing
  Capacity = 4,  // does not fit in memory or in the context
  Device = 5,    // no usable device
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

// Builders, used as `throw data_error("{}: ...", path)`.
template <class... Args>
[[nodiscard]] Error runtime_failure(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::Runtime, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
[[nodiscard]] Error usage_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::Usage, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
[[nodiscard]] Error data_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::Data, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
[[nodiscard]] Error capacity_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::Capacity, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
[[nodiscard]] Error device_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::Device, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace fut
