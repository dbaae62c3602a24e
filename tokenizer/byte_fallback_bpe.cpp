// BPE with byte fallback; see byte_fallback_bpe.h. Bytes that are not UTF-8 take the fallback one
// by one and so come back as they were.
#include "tokenizer/byte_fallback_bpe.h"

#include <string>

#include "tokenizer/utf8.h"

namespace fut {
namespace {

constexpr char32_t kBlankMarkChar = U'\u2581';

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  const int high = hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string unmark_blanks(std::string_view token) {
  std::string bytes;
  while (true) {
    const std::size_t mark = token.find(kBlankMark);
    bytes.append(token.substr(0, mark));
    if (mark == std::string_view::npos) return bytes;
    bytes.push_back(' ');
    token.remove_prefix(mark + kBlankMark.size());
  }
}

void ByteFallbackBpe::encode(std::string_view text, std::vector<TokenId>& ids) const {
  std::vector<TokenId> symbols;
  symbols.reserve(text.size() + 1);
  const auto add = [&](char32_t c, std::string_view bytes) {
    const auto found = symbols_.characters.find(c);
    if (found != symbols_.characters.end()) {
      symbols.push_back(found->second);
    } else {
      add_bytes(bytes, symbols);
    }
  };
  if (symbols_.dummy_prefix) add(kBlankMarkChar, kBlankMark);
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t length = utf8::char_length(text, pos);
    if (length == 0) {
      add_bytes(text.substr(pos, 1), symbols);
      ++pos;
      continue;
    }
    const char32_t c = utf8::code_point(text, pos, length);
    if (c == U' ') {
      add(kBlankMarkChar, kBlankMark);
    } else {
      add(c, text.substr(pos, length));
    }
    pos += length;
  }
  merge_symbols(merges_, symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

// All bytes of a character or none: half of them would decode to garbage.
void ByteFallbackBpe::add_bytes(std::string_view bytes, std::vector<TokenId>& symbols) const {
  const std::size_t before = symbols.size();
  for (const char byte : bytes) {
    const TokenId id = symbols_.bytes[static_cast<unsigned char>(byte)];
    if (id >= 0) {
      symbols.push_back(id);
      continue;
    }
    symbols.resize(before);
    if (!symbols_.unknown) return;
    const bool fused = symbols_.fuse_unknown && before > 0 && symbols.back() == *symbols_.unknown;
    if (!fused) symbols.push_back(*symbols_.unknown);
    return;
  }
}

}  // namespace fut
