// UTF-8 by the book: no overlong forms, no surrogates, nothing above U+10FFFF. Works on bytes that
// may be anything; never throws.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fut::utf8 {

// Bytes of the character that starts at text[pos] (1 to 4), or 0 where no valid one starts.
[[nodiscard]] std::size_t char_length(std::string_view text, std::size_t pos);

// The character of `length` bytes at text[pos]; `length` is what char_length gave, not 0.
[[nodiscard]] char32_t code_point(std::string_view text, std::size_t pos, std::size_t length);

// Bytes at the end of `text` that begin a character and could still become a valid one (0 to 3).
[[nodiscard]] std::size_t unfinished_tail(std::string_view text);

// Bytes from `pos` on that are valid UTF-8, whole characters only.
[[nodiscard]] std::size_t valid_run(std::string_view text, std::size_t pos);

// Bytes from `pos` on at none of which a valid character starts.
[[nodiscard]] std::size_t invalid_run(std::string_view text, std::size_t pos);

// Appends a character; `c` must be a Unicode scalar value.
void append(std::string& out, char32_t c);

// The White_Space property of Unicode.
[[nodiscard]] bool is_white_space(char32_t c);

}  // namespace fut::utf8
