// What a Tokenizer is made of: one encoder, which differs between the kinds, and facts that the
// kinds share. Internal to tokenizer/.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/special_tokens.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocabulary.h"

namespace fut {

// Takes one piece of a text; the view lies in the text.
using PieceVisitor = std::function<void(std::string_view)>;

// Text without special tokens to ids. Const and without hidden state: safe from many threads.
class TextEncoder {
 public:
  TextEncoder() = default;
  TextEncoder(const TextEncoder&) = delete;
  TextEncoder& operator=(const TextEncoder&) = delete;
  virtual ~TextEncoder() = default;

  // Appends the ids of `text`, any bytes, never empty.
  virtual void encode(std::string_view text, std::vector<TokenId>& ids) const = 0;

  // The pieces within which tokens are merged; joined they are `text`.
  virtual void split(std::string_view text, const PieceVisitor& visit) const { visit(text); }
};

struct TokenizerParts {
  std::unique_ptr<TextEncoder> encoder;
  std::shared_ptr<const Vocabulary> vocabulary;
  std::vector<AddedToken> added_tokens;
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  bool adds_bos = false;
  bool dummy_prefix = false;  // the encoder puts a space before a text; decoding drops it
  std::string kind;
  std::filesystem::path source;
};

}  // namespace fut
