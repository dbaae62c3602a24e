// Reading of the small files of a model folder whole, with messages that name file and byte.
// Internal to tokenizer/; knows nothing of what the files mean.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fut {

// Whether there is something under this name, a link that leads nowhere included. Throws Data where that cannot be found out.
[[nodiscard]] bool is_there(const std::filesystem::path& path);

// How deeply the JSON of these files may be nested.
inline constexpr int kMaxJsonDepth = 32;

// Throws Data: not there, not a plain file, not readable, absurdly large.
[[nodiscard]] std::string read_data_file(const std::filesystem::path& path);

// The JSON parser takes a NUL for the end of the text and would not look at what follows: throws
// Data with file and byte where there is one.
void refuse_nul(std::string_view text, const std::filesystem::path& path);

// Throws Data with file and byte where `text`, the content of `path`, is not JSON; where it has more
// than 16 MiB, each of which can take 30 as a tree; where it is nested more than kMaxJsonDepth levels.
[[nodiscard]] nlohmann::json parse_json(std::string_view text, const std::filesystem::path& path);

// The same for a parser that found the error itself; `text` serves the hint on what the file is.
[[noreturn]] void throw_json_error(const nlohmann::json::exception& error, std::size_t byte,
                                   std::string_view text, const std::filesystem::path& path);

// Throws Data: nested more than kMaxJsonDepth levels.
[[noreturn]] void throw_too_deep(const std::filesystem::path& path);

// What the content looks like when it is none of what was expected: " (it is empty)", " (it looks
// like a Git LFS pointer: ...)"; "" where nothing is recognised.
[[nodiscard]] std::string_view content_hint(std::string_view text);

// At most a few dozen bytes of `text`, printable, for a message.
[[nodiscard]] std::string excerpt(std::string_view text);

}  // namespace fut
