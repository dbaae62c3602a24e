// See the header.
#include "apps/wide_text.h"

#include <algorithm>
#include <clocale>
#include <cstring>
#include <langinfo.h>

#include "apps/escape.h"
#include "tokenizer/utf8.h"

namespace fut::app {
namespace {

constexpr wchar_t kReplacement = L'\uFFFD';

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

}  // namespace

void use_utf8_locale() {
  const char* own = std::setlocale(LC_CTYPE, "");
  if (own != nullptr && std::strcmp(::nl_langinfo(CODESET), "UTF-8") == 0) return;
  std::setlocale(LC_CTYPE, "C.UTF-8");
}

std::wstring to_wide(std::string_view bytes) {
  std::wstring text;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t length = utf8::char_length(bytes, at);
    text += length == 0 ? kReplacement : static_cast<wchar_t>(utf8::code_point(bytes, at, length));
    at += std::max<std::size_t>(length, 1);
    if (text.back() != kReplacement)
      continue;  // one mark for all that is left of a broken character
    while (at < bytes.size() && is_continuation(bytes[at])) ++at;
  }
  return text;
}

std::string to_utf8(std::wstring_view text) {
  std::string bytes;
  for (const wchar_t c : text) utf8::append(bytes, static_cast<char32_t>(c));
  return bytes;
}

std::wstring pasted_text(std::string_view bytes) {
  std::wstring text;
  wchar_t before = 0;
  for (const wchar_t c : to_wide(bytes)) {
    const bool second_of_pair = c == L'\n' && before == L'\r';
    before = c;
    if (c == L'\r' || (c == L'\n' && !second_of_pair))
      text += L'\n';
    else if (c == L'\t' || !is_control_character(static_cast<std::uint32_t>(c)))
      text += c;
  }
  return text;
}

}  // namespace fut::app
