// Words for messages: names that cannot break a line, shapes, short lists, and what a file that is
// not what it should be looks like. Decides nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fut {

// 'text' with control characters written as \xNN and the middle left out where it is very long.
[[nodiscard]] std::string quote(std::string_view text);

// "[512, 64]"
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);

// "a, b, c and 12 more"; "nothing" for an empty list.
[[nodiscard]] std::string first_few(std::span<const std::string> items);

// What a file starting with these bytes is, when it is a well-known wrong thing, with the way out:
// "a Git LFS pointer, not the file itself (run `git lfs pull`)". Empty where nothing is recognised.
[[nodiscard]] std::string_view looks_like(std::string_view start);

}  // namespace fut
