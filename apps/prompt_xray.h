// What a model is really sent: the text with its control tokens, every token with its id, and what about
// it is suspicious.
#pragma once

#include <span>
#include <string>

#include "tokenizer/tokenizer.h"

namespace fut::app {

struct XrayOptions {
  std::size_t cached = 0;  // of the first tokens, so many were computed by an earlier turn
  bool color = false;
};

[[nodiscard]] std::string prompt_xray(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                                      const XrayOptions& options);

}  // namespace fut::app
