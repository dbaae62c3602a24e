// See the header.
#include "apps/words.h"

#include <fmt/format.h>

namespace fut::app {

std::string counted(std::uint64_t count, std::string_view thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

std::string size_text(std::uint64_t bytes) {
  constexpr double kMebibyte = 1 << 20;
  constexpr double kGibibyte = 1 << 30;
  constexpr double kMostMebibytes = 10 * kGibibyte;
  const auto size = static_cast<double>(bytes);
  if (size < kMostMebibytes) return fmt::format("{:.1f} MiB", size / kMebibyte);
  return fmt::format("{:.1f} GiB", size / kGibibyte);
}

std::string seconds_text(double seconds) {
  if (seconds < 10) return fmt::format("{:.2f} s", seconds);
  if (seconds < 100) return fmt::format("{:.1f} s", seconds);
  return fmt::format("{:.0f} s", seconds);
}

}  // namespace fut::app
