// Tokens that are found in a text by their spelling, before anything is split or merged: the
// special tokens (`<|eot_id|>`) and the words that somebody added to a vocabulary later.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace fut {

struct AddedToken {
  TokenId id = 0;
  std::string text;
  bool special = true;      // a control token; otherwise an ordinary word
  bool takes_left = false;  // swallows the white space before it ("lstrip")
  bool takes_right = false;
};

// Spellings longer than this are refused by the readers: the matcher walks at most this far from
// each byte of a text, so the bound keeps a search linear whatever a file contains.
inline constexpr std::size_t kLongestAddedToken = 256;

class SpecialTokenMatcher {
 public:
  struct Match {
    std::size_t begin = 0;  // bytes of the text, swallowed white space included
    std::size_t end = 0;
    TokenId id = 0;
  };

  SpecialTokenMatcher() = default;
  explicit SpecialTokenMatcher(const std::vector<AddedToken>& tokens);

  // The first token at or after `from`, the longest of those that start there.
  [[nodiscard]] std::optional<Match> next(std::string_view text, std::size_t from) const;

 private:
  struct Node {
    std::vector<std::pair<char, std::uint32_t>> children;
    std::int32_t token = -1;  // index into tokens_
  };
  struct Token {
    TokenId id;
    bool takes_left;
    bool takes_right;
  };

  void add(const AddedToken& token);
  [[nodiscard]] std::uint32_t child(std::uint32_t node, char byte) const;  // 0: none

  std::vector<Node> nodes_;  // a trie; node 0 is the root and nobody's child
  std::vector<Token> tokens_;
  std::array<bool, 256> starts_{};  // bytes that a token starts with
};

}  // namespace fut
