// See the header.
#include "apps/escape.h"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <iterator>

namespace fut::app {
namespace {

// Bytes of the well-formed UTF-8 character at the start of `text`; 0: there is none. The ranges of
// the second byte are those of Unicode's table 3-7.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  const std::uint8_t least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const std::uint8_t most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < least || byte(1) > most) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

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

// Whether the character of `length` bytes at the start of `text` is a control character. Those lie among
// the characters of one and two bytes.
bool begins_with_control(std::string_view text, std::size_t length) {
  const auto first = static_cast<std::uint8_t>(text[0]);
  if (length == 1) return is_control_character(first);
  if (length > 2) return false;
  return is_control_character((first & 0x1FU) << 6U | (static_cast<std::uint8_t>(text[1]) & 0x3FU));
}

// `kept` are characters of one byte that stay, `spelt` others that do not.
std::string escaped(std::string_view text, std::string_view kept, std::string_view spelt) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = character_bytes(text);
    const bool plain = length > 0 && spelt.find(text[0]) == spelt.npos &&
                       (!begins_with_control(text, length) || kept.find(text[0]) != kept.npos);
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
