// Two texts side by side.
#pragma once

#include <string>
#include <string_view>

namespace fut::app {

// Each in a column of `width` cells, broken at blanks where that is possible; control characters are
// spelt out.
[[nodiscard]] std::string side_by_side(std::string_view left, std::string_view right,
                                       std::size_t width);

}  // namespace fut::app
