// UTF-8 to wide characters, as libedit takes them and as cells of a terminal are counted, and back.
#pragma once

#include <string>
#include <string_view>

namespace fut::app {

// Cells are counted by the locale, and what is typed out is UTF-8: takes the user's own where that is of
// UTF-8, else C.UTF-8.
void use_utf8_locale();

// Bytes that are not UTF-8 become U+FFFD.
[[nodiscard]] std::wstring to_wide(std::string_view bytes);
[[nodiscard]] std::string to_utf8(std::wstring_view text);

// Pasted text as it goes into a line: carriage returns become newlines, other control characters but
// the tab are left out, so that no sequence for the terminal comes in by the back door.
[[nodiscard]] std::wstring pasted_text(std::string_view bytes);

}  // namespace fut::app
