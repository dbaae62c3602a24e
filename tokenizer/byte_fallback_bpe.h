// BPE over characters with byte fallback, the kind of Llama-2-style tokenizer.json files: blanks
// become U+2581, a text starts as its characters, characters without a token become their bytes,
// neighbours merge by rank. No split pattern: a whole text is one piece.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tokenizer/bpe_merge.h"
#include "tokenizer/tokenizer_impl.h"

namespace fut {

// The character that stands for a blank in vocabularies of this kind and of SentencePiece.
inline constexpr std::string_view kBlankMark = "\u2581";

// The byte (0 to 255) that a token spelt like <0x0A> stands for; -1 for any other token.
[[nodiscard]] int fallback_byte(std::string_view token);

// The bytes of a token that is not a fallback byte: blank marks are blanks.
[[nodiscard]] std::string unmark_blanks(std::string_view token);

class ByteFallbackBpe final : public TextEncoder {
 public:
  struct Symbols {
    std::unordered_map<char32_t, TokenId> characters;  // tokens of one character, marks included
    std::array<TokenId, 256> bytes{};                  // -1 where there is no such token
    std::optional<TokenId> unknown;
    bool fuse_unknown = false;  // neighbouring unknown characters make one unknown token
    bool dummy_prefix = false;  // a blank is put before every text
  };

  ByteFallbackBpe(Symbols symbols, MergeTable merges)
      : symbols_(std::move(symbols)), merges_(std::move(merges)) {}

  void encode(std::string_view text, std::vector<TokenId>& ids) const override;

 private:
  void add_bytes(std::string_view bytes, std::vector<TokenId>& symbols) const;

  Symbols symbols_;
  MergeTable merges_;
};

}  // namespace fut
