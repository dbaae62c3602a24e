// Text on one line: what would break a line or garble a terminal is spelt out.
#pragma once

#include <string>
#include <string_view>

namespace fut::app {

// \n \r \t \\ as such, other control characters and bytes that are not UTF-8 as \xHH. The rest,
// other languages' letters included, stays.
[[nodiscard]] std::string escape_controls(std::string_view text);

}  // namespace fut::app
