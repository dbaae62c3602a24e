// Stop strings in a byte stream.
#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "kernels/error.h"

namespace fut {
namespace {

// The length of the longest suffix of `text` that is a proper prefix of `stop`.
std::size_t open_suffix(std::string_view text, std::string_view stop) {
  for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == stop.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  if (std::any_of(stops_.begin(), stops_.end(), [](const std::string& s) { return s.empty(); })) {
    throw usage_error(
        "a stop string is empty: it would end every reply before its first character");
  }
}

std::string StopMatcher::push(std::string_view bytes) {
  if (matched_) return {};
  held_ += bytes;
  std::size_t start = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    if (at < start || (at == start && stop.size() > matched_->size())) {
      start = at;
      matched_ = stop;
    }
  }
  if (matched_) {
    std::string before = held_.substr(0, start);
    held_.clear();
    return before;
  }
  std::size_t keep = 0;
  for (const std::string& stop : stops_) keep = std::max(keep, open_suffix(held_, stop));
  std::string released = held_.substr(0, held_.size() - keep);
  held_.erase(0, released.size());
  return released;
}

std::string StopMatcher::flush() {
  return std::exchange(held_, {});
}

}  // namespace fut
