// UTF-8 decoding and validation; see utf8.h. One table-free walk over lead and second byte covers
// all the forms that the standard forbids.
#include "tokenizer/utf8.h"

#include <cstdint>
#include <cstring>

namespace fut::utf8 {
namespace {

struct Lead {
  std::size_t length;  // 0: no character starts with this byte
  unsigned char low;   // allowed range of the second byte
  unsigned char high;
};

// The second byte's range is what rules out overlong forms (E0, F0), surrogates (ED) and code
// points that do not exist (F4).
Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

unsigned char byte_at(std::string_view text, std::size_t pos) {
  return static_cast<unsigned char>(text[pos]);
}

// How many of the bytes of the character that text[pos] begins are there and fit it; at most
// lead.length.
std::size_t matched_bytes(std::string_view text, std::size_t pos, const Lead& lead) {
  if (lead.length == 0) return 0;
  std::size_t n = 1;
  while (n < lead.length && pos + n < text.size()) {
    const unsigned char byte = byte_at(text, pos + n);
    const unsigned char low = n == 1 ? lead.low : 0x80;
    const unsigned char high = n == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) break;
    ++n;
  }
  return n;
}

}  // namespace

std::size_t char_length(std::string_view text, std::size_t pos) {
  const Lead lead = lead_of(byte_at(text, pos));
  return matched_bytes(text, pos, lead) == lead.length ? lead.length : 0;
}

char32_t code_point(std::string_view text, std::size_t pos, std::size_t length) {
  if (length == 1) return byte_at(text, pos);
  char32_t c = byte_at(text, pos) & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) c = (c << 6) | (byte_at(text, pos + i) & 0x3Fu);
  return c;
}

std::size_t unfinished_tail(std::string_view text) {
  const std::size_t most = text.size() < 3 ? text.size() : 3;
  for (std::size_t n = 1; n <= most; ++n) {
    const std::size_t pos = text.size() - n;
    if ((byte_at(text, pos) & 0xC0) == 0x80) continue;  // a later byte of some character
    const Lead lead = lead_of(byte_at(text, pos));
    return lead.length > n && matched_bytes(text, pos, lead) == n ? n : 0;
  }
  return 0;
}

std::size_t valid_run(std::string_view text, std::size_t pos) {
  const std::size_t begin = pos;
  while (pos < text.size()) {
    if (pos + 8 <= text.size()) {  // most text is ASCII: eight bytes at a time
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + pos, 8);
      if ((word & 0x8080808080808080u) == 0) {
        pos += 8;
        continue;
      }
    }
    const std::size_t length = char_length(text, pos);
    if (length == 0) break;
    pos += length;
  }
  return pos - begin;
}

std::size_t invalid_run(std::string_view text, std::size_t pos) {
  const std::size_t begin = pos;
  while (pos < text.size() && char_length(text, pos) == 0) ++pos;
  return pos - begin;
}

void append(std::string& out, char32_t c) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace fut::utf8
