// See the header.
#include "apps/logging.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <string_view>
#include <unistd.h>

#include "kernels/error.h"

namespace fut::app {
namespace {

spdlog::level::level_enum level_of(int verbosity) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::err, spdlog::level::warn,
                                                   spdlog::level::info, spdlog::level::debug,
                                                   spdlog::level::trace};
  return kLevels[std::clamp(verbosity, 0, 4)];
}

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::Error:
      return spdlog::level::err;
    case LogLevel::Warning:
      return spdlog::level::warn;
    case LogLevel::Info:
      break;
  }
  return spdlog::level::info;
}

}  // namespace

void log_message(LogLevel level, std::string_view message) {
  spdlog::log(level_of(level), "{}", message);
}

bool is_logged(LogLevel level) {
  return spdlog::default_logger()->should_log(level_of(level));
}

bool standard_error_is_terminal() {
  return ::isatty(STDERR_FILENO) == 1;
}

void write_to_standard_error(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

bool use_color(ColorMode mode) {
  if (mode != ColorMode::Auto) return mode == ColorMode::On;
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return standard_error_is_terminal() && (no_color == nullptr || *no_color == '\0') &&
         terminal != nullptr && std::string_view(terminal) != "dumb";
}

void set_up_logging(const LogOptions& options) {
  const auto color =
      use_color(options.color) ? spdlog::color_mode::always : spdlog::color_mode::never;
  auto screen = std::make_shared<spdlog::sinks::ansicolor_stderr_sink_mt>(color);
  screen->set_pattern("%^%l%$: %v");
  auto logger = std::make_shared<spdlog::logger>("fut", std::move(screen));
  if (!options.log_file.empty()) {
    // spdlog would make folders, those of a mistyped name too.
    const auto folder = std::filesystem::path(options.log_file).parent_path();
    std::error_code ignored;
    if (!folder.empty() && !std::filesystem::is_directory(folder, ignored)) {
      throw runtime_failure("--log-file {}: there is no folder {}", options.log_file,
                            folder.string());
    }
    try {
      auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.log_file);
      file->set_pattern("%Y-%m-%d %H:%M:%S.%e %l: %v");
      logger->sinks().push_back(std::move(file));
    } catch (const spdlog::spdlog_ex& e) {
      throw runtime_failure("--log-file: {}", e.what());
    }
    logger->flush_on(spdlog::level::trace);
  }
  logger->set_level(level_of(options.verbosity));
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace fut::app
