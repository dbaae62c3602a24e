// See the header.
#include "apps/escape.h"

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

}  // namespace

std::string escape_controls(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text[0]);
    const std::size_t length = character_bytes(text);
    const bool plain =
        length > 1 || (length == 1 && first >= 0x20 && first != 0x7F && first != '\\');
    if (plain) {
      result += text.substr(0, length);
    } else {
      append_escaped_byte(result, text[0]);
    }
    text.remove_prefix(plain ? length : 1);
  }
  return result;
}

}  // namespace fut::app
