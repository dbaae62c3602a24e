// Finds stop strings in a stream of bytes and never lets a byte of a match through.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fut {

class StopMatcher {
 public:
  // Empty strings are a caller's mistake (Usage).
  explicit StopMatcher(std::vector<std::string> stops);

  // Appends bytes and returns those that can be released: all but the longest suffix that is a
  // proper prefix of a stop string. Once a stop string is complete (the earliest start wins, then
  // the longest), returns what stood before it and matched() is set; later bytes are ignored.
  [[nodiscard]] std::string push(std::string_view bytes);
  // Nothing follows: returns what was held.
  [[nodiscard]] std::string flush();
  [[nodiscard]] const std::optional<std::string>& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace fut
