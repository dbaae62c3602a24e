// See the header.
#include "apps/wide_text.h"

#include <clocale>
#include <cstring>
#include <langinfo.h>

#include "apps/escape.h"

namespace fut::app {
namespace {

constexpr wchar_t kReplacement = L'\uFFFD';
constexpr unsigned char kContinuationBits = 0x3F;

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

// The character of `length` whole bytes, or U+FFFD for one that UTF-8 does not allow.
wchar_t character(std::string_view bytes) {
  constexpr unsigned char kLeadBits[] = {0x7F, 0x1F, 0x0F, 0x07};
  constexpr unsigned kLeast[] = {0, 0x80, 0x800, 0x10000};
  constexpr unsigned kMost = 0x10FFFF;
  const std::size_t n = bytes.size() - 1;
  unsigned code = static_cast<unsigned char>(bytes[0]) & kLeadBits[n];
  for (const char c : bytes.substr(1)) {
    if (!is_continuation(c)) return kReplacement;
    code = code << 6 | (static_cast<unsigned char>(c) & kContinuationBits);
  }
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  return code < kLeast[n] || code > kMost || surrogate ? kReplacement : static_cast<wchar_t>(code);
}

}  // namespace

void use_utf8_locale() {
  const char* own = std::setlocale(LC_CTYPE, "");
  if (own != nullptr && std::strcmp(::nl_langinfo(CODESET), "UTF-8") == 0) return;
  std::setlocale(LC_CTYPE, "C.UTF-8");
}

std::wstring to_wide(std::string_view bytes) {
  std::wstring text;
  while (!bytes.empty()) {
    const auto first = static_cast<unsigned char>(bytes[0]);
    const std::size_t length = utf8_length(first);
    const bool is_ascii = first < 0x80;
    const bool is_whole = length <= bytes.size() && (is_ascii || length > 1);
    const wchar_t c = is_whole ? character(bytes.substr(0, length)) : kReplacement;
    text += c;
    bytes.remove_prefix(c == kReplacement ? 1 : length);
    if (c == kReplacement) {  // one mark for all that is left of a broken character
      while (!bytes.empty() && is_continuation(bytes[0])) bytes.remove_prefix(1);
    }
  }
  return text;
}

std::string to_utf8(std::wstring_view text) {
  std::string bytes;
  for (const wchar_t wide : text) {
    const auto code = static_cast<unsigned>(wide);
    const auto add = [&](unsigned lead, int shift) {
      bytes += static_cast<char>(lead | code >> shift);
      for (shift -= 6; shift >= 0; shift -= 6) {
        bytes += static_cast<char>(0x80U | (code >> shift & kContinuationBits));
      }
    };
    if (code < 0x80)
      add(0, 0);
    else if (code < 0x800)
      add(0xC0, 6);
    else if (code < 0x10000)
      add(0xE0, 12);
    else
      add(0xF0, 18);
  }
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
