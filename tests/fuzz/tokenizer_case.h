// What a tokenizer that was accepted has to keep, whatever file it came from. Texts are short: a hostile
// split pattern may take its full number of steps at every byte of them.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz_case.h"
#include "tokenizer/tokenizer_impl.h"

namespace fut::test {

inline bool is_added(const TokenizerParts& parts, TokenId id) {
  return std::ranges::any_of(parts.added_tokens,
                             [&](const AddedToken& token) { return token.id == id; });
}

// `comes_back`: the kind loses nothing of a text, so that the ids' bytes joined are the text.
inline void check_text(const TokenizerParts& parts, std::string_view text, bool comes_back) {
  std::vector<TokenId> ids;
  const bool is_encoded = accepted([&] { parts.encoder->encode(text, ids); });
  if (!is_encoded) return;  // a split pattern that backtracks without end
  std::string joined;
  bool has_added = false;
  for (const TokenId id : ids) {
    require(parts.vocabulary->has(id), "an id that no token has");
    joined += parts.vocabulary->bytes(id);
    has_added = has_added || is_added(parts, id);
  }
  // An added token is spelt as it is written, also where merging made it; U+2581 can be a blank.
  const bool has_mark = text.find("\xE2\x96\x81") != text.npos;
  if (comes_back && !has_added && !has_mark) {
    require(joined == (parts.dummy_prefix ? " " : "") + std::string(text), "a text that is lost");
  }
  std::string pieces;
  parts.encoder->split(text, [&](std::string_view piece) { pieces += piece; });
  require(pieces == text, "pieces that do not make the text");
}

inline void check_parts(const TokenizerParts& parts, std::string_view input, bool comes_back) {
  const int size = parts.vocabulary->size();
  require(size > 0, "no tokens");
  // Holes are rare in real files and bounded in all: a small file cannot ask for a large table.
  require(static_cast<std::size_t>(size) <= 4 * input.size() + 100000, "ids far beyond the file");
  for (const auto& id : {parts.bos, parts.eos}) {
    require(!id || parts.vocabulary->has(*id), "a BOS or EOS that no token has");
  }
  require(!parts.adds_bos || parts.bos.has_value(), "a BOS to add and none there");
  for (const AddedToken& token : parts.added_tokens) {
    require(parts.vocabulary->bytes(token.id) == token.text, "an added token of another spelling");
  }
  for (const std::string_view text :
       {std::string_view("Hello, world! 12345\r\n  don't\t\xC3\xA9\xE2\x82\xAC "),
        std::string_view("\xFF\x00 a\xF0\x9F\x98\x80\x80", 9), input.substr(input.size() / 2, 40),
        input.substr(0, 24)}) {
    if (!text.empty()) check_text(parts, text, comes_back);
  }
}

}  // namespace fut::test
