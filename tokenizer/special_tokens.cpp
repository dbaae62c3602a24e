// The search for added tokens; see special_tokens.h. A trie entered only at bytes that some token
// starts with: ordinary text costs one table look-up a byte.
#include "tokenizer/special_tokens.h"

#include "tokenizer/utf8.h"

namespace fut {
namespace {

// White space that ends at `end`, not before `from`.
std::size_t skip_space_back(std::string_view text, std::size_t from, std::size_t end) {
  std::size_t begin = end;
  while (begin > from) {
    std::size_t pos = begin - 1;
    while (pos > from && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80) --pos;
    const std::size_t length = utf8::char_length(text, pos);
    if (length != begin - pos || !utf8::is_white_space(utf8::code_point(text, pos, length))) break;
    begin = pos;
  }
  return begin;
}

std::size_t skip_space(std::string_view text, std::size_t pos) {
  while (pos < text.size()) {
    const std::size_t length = utf8::char_length(text, pos);
    if (length == 0 || !utf8::is_white_space(utf8::code_point(text, pos, length))) break;
    pos += length;
  }
  return pos;
}

}  // namespace

SpecialTokenMatcher::SpecialTokenMatcher(const std::vector<AddedToken>& tokens) {
  nodes_.emplace_back();
  for (const AddedToken& token : tokens) add(token);
}

void SpecialTokenMatcher::add(const AddedToken& token) {
  if (token.text.empty()) return;
  starts_[static_cast<unsigned char>(token.text.front())] = true;
  std::uint32_t node = 0;
  for (const char byte : token.text) {
    std::uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<std::uint32_t>(nodes_.size());
      nodes_.emplace_back();
      nodes_[node].children.emplace_back(byte, next);
    }
    node = next;
  }
  nodes_[node].token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back({token.id, token.takes_left, token.takes_right});
}

std::uint32_t SpecialTokenMatcher::child(std::uint32_t node, char byte) const {
  for (const auto& [key, next] : nodes_[node].children) {
    if (key == byte) return next;
  }
  return 0;
}

std::optional<SpecialTokenMatcher::Match> SpecialTokenMatcher::next(std::string_view text,
                                                                    std::size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    std::int32_t found = -1;
    std::size_t found_end = begin;
    std::uint32_t node = 0;
    for (std::size_t pos = begin; pos < text.size(); ++pos) {
      node = child(node, text[pos]);
      if (node == 0) break;
      if (nodes_[node].token < 0) continue;
      found = nodes_[node].token;
      found_end = pos + 1;
    }
    if (found < 0) continue;
    const Token& token = tokens_[static_cast<std::size_t>(found)];
    return Match{token.takes_left ? skip_space_back(text, from, begin) : begin,
                 token.takes_right ? skip_space(text, found_end) : found_end, token.id};
  }
  return std::nullopt;
}

}  // namespace fut
