// The nearest of a list of names to a mistyped one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fut::app {

// By edit distance over the names without their dashes; nullopt where none is near enough to be
// what was meant (more than half of the letters differ).
[[nodiscard]] std::optional<std::string> nearest_name(std::string_view word,
                                                      const std::vector<std::string>& names);

}  // namespace fut::app
