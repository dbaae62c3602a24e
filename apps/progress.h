// One line on a terminal that is written over itself while something takes its time. Elsewhere
// nothing: logs and pipes get no progress.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace fut::app {

class ProgressLine {
 public:
  // Shows itself where standard error is a terminal and messages are wanted at all.
  ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine();  // wipes the line

  // Also where Ctrl-C is noticed: throws Interrupted. Writes only what differs from the last time.
  void show(std::string_view text);
  // "quantising [########------------] 40 % layers.3": the bar is of all, `what` of the moment.
  void show_bar(std::string_view title, std::uint64_t done, std::uint64_t total,
                std::string_view what);

 private:
  bool shows_;
  std::string last_;
  std::size_t widest_ = 0;
};

// For who tells bytes done and bytes in all: a line "loading 40 %, 11.52 GB/s", since now, that goes with
// the function.
[[nodiscard]] std::function<void(std::uint64_t done, std::uint64_t total)> rate_progress(
    std::string what);

}  // namespace fut::app
