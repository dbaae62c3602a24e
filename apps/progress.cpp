// See the header.
#include "apps/progress.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <memory>
#include <utility>

#include "apps/logging.h"
#include "apps/signals.h"

namespace fut::app {
namespace {

int percent_of(std::uint64_t done, std::uint64_t total) {
  constexpr double kAll = 100;
  if (total == 0) return static_cast<int>(kAll);
  return static_cast<int>(static_cast<double>(std::min(done, total)) / static_cast<double>(total) *
                          kAll);
}

}  // namespace

ProgressLine::ProgressLine()
    : shows_(standard_error_is_terminal() && is_logged(LogLevel::Warning)) {}

ProgressLine::~ProgressLine() {
  if (widest_ > 0) write_to_standard_error("\r" + std::string(widest_, ' ') + "\r");
}

void ProgressLine::show(std::string_view text) {
  throw_if_interrupted();
  if (!shows_ || text == last_) return;
  last_ = text;
  // What the last line had more is wiped.
  const std::size_t blanks = widest_ > text.size() ? widest_ - text.size() : 0;
  widest_ = std::max(widest_, text.size());
  write_to_standard_error("\r" + last_ + std::string(blanks, ' '));
}

void ProgressLine::show_bar(std::string_view title, std::uint64_t done, std::uint64_t total,
                            std::string_view what) {
  constexpr std::size_t kBarWidth = 20;
  constexpr int kAll = 100;
  const int percent = percent_of(done, total);
  const std::size_t filled = kBarWidth * static_cast<std::size_t>(percent) / kAll;
  show(fmt::format("{} [{}{}] {} % {}", title, std::string(filled, '#'),
                   std::string(kBarWidth - filled, '-'), percent, what));
}

std::function<void(std::uint64_t, std::uint64_t)> rate_progress(std::string what) {
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLeastBetween{100};
  return [what = std::move(what), line = std::make_shared<ProgressLine>(), start = Clock::now(),
          next = Clock::time_point{}](std::uint64_t done, std::uint64_t total) mutable {
    throw_if_interrupted();
    const Clock::time_point now = Clock::now();
    if (now < next && done < total) return;
    next = now + kLeastBetween;
    const std::chrono::duration<double> seconds = now - start;
    const double rate = static_cast<double>(done) / 1e9 / std::max(seconds.count(), 1e-9);
    line->show(fmt::format("{} {} %, {:.2f} GB/s", what, percent_of(done, total), rate));
  };
}

}  // namespace fut::app
