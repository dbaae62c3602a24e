// Messages for people: spdlog to standard error, and to a file on request. Never standard output.
// The library itself is included by logging.cpp alone.
#pragma once

#include <fmt/format.h>
#include <string>
#include <string_view>
#include <utility>

namespace fut::app {

enum class ColorMode { Auto, On, Off };

struct LogOptions {
  int verbosity = 1;     // 0 errors, 1 warnings, 2 what is going on, 3 details, 4 and 5 everything
  std::string log_file;  // empty: none
  ColorMode color = ColorMode::Auto;
};
inline constexpr int kInfoVerbosity = 2;

// Throws Runtime where the log file cannot be opened.
void set_up_logging(const LogOptions& options);

enum class LogLevel { Error, Warning, Info };
void log_message(LogLevel level, std::string_view message);
// Whether messages of this level are shown anywhere.
[[nodiscard]] bool is_logged(LogLevel level);

template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::Error, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::Warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::Info, fmt::format(format, std::forward<Args>(args)...));
}

// Whether standard error may be coloured: a terminal that is not "dumb", and no NO_COLOR, unless
// `mode` decides.
[[nodiscard]] bool use_color(ColorMode mode);

[[nodiscard]] bool standard_error_is_terminal();

// For what is not a message of some level: prompts, banners, progress. A signal or a broken
// standard error never makes a command fail.
void write_to_standard_error(std::string_view text);

}  // namespace fut::app
