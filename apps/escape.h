// Text on one line: what would break a line or garble a terminal is spelt out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fut::app {

// What moves a terminal's cursor or worse: C0, DEL and C1.
[[nodiscard]] constexpr bool is_control_character(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0);
}

// \n \r \t \\ as such, other control characters and bytes that are not UTF-8 as \xHH. The rest,
// other languages' letters included, stays.
[[nodiscard]] std::string escape_controls(std::string_view text);
// The same of a text of several lines: newlines and backslashes stay.
[[nodiscard]] std::string escape_controls_in_lines(std::string_view text);

}  // namespace fut::app
