// See the header.
#include "apps/escape.h"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <iterator>

#include "tokenizer/utf8.h"

namespace fut::app {
namespace {

void append_escaped_byte(std::string& result, char c) {
  switch (c) {
    case '\n':
      result += "\\n";
      return;
    case '\r':
      result += "\\r";
      return;
    case '\t':
      result += "\\t";
      return;
    case '\\':
      result += "\\\\";
      return;
    default:
      fmt::format_to(std::back_inserter(result), "\\x{:02X}", static_cast<unsigned char>(c));
  }
}

// `kept` are characters of one byte that stay, `spelt` others that do not.
std::string escaped(std::string_view text, std::string_view kept, std::string_view spelt) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = utf8::char_length(text, 0);
    const bool plain = length > 0 && spelt.find(text[0]) == spelt.npos &&
                       (!is_control_character(utf8::code_point(text, 0, length)) ||
                        kept.find(text[0]) != kept.npos);
    const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    if (plain) {
      result += character;
    } else {
      for (const char c : character) append_escaped_byte(result, c);
    }
    text.remove_prefix(character.size());
  }
  return result;
}

}  // namespace

std::string escape_controls(std::string_view text) {
  return escaped(text, "", "\\");
}

std::string escape_controls_in_lines(std::string_view text) {
  return escaped(text, "\n", "");
}

}  // namespace fut::app
