// --truncate: parts of a prompt that is too long are dropped, on request only, and counted.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "apps/options.h"
#include "apps/prompt.h"
#include "tokenizer/chat_template.h"

namespace fut::app {

struct TruncatedPrompt {
  std::vector<TokenId> ids;
  std::size_t dropped = 0;  // tokens
};

// How many tokens a prompt may keep: the rest is for a reply of max_new_tokens, which gets at most
// half of the context.
[[nodiscard]] std::size_t tokens_to_keep(std::int64_t max_new_tokens, int context_tokens);

// `ids` has more than `keep`. A BOS in front stays.
[[nodiscard]] TruncatedPrompt truncate_raw(std::vector<TokenId> ids, std::optional<TokenId> bos,
                                           std::size_t keep, Truncate which);

// Shortens the text of the last message; the turns before it and the template's tokens stay. Throws
// Capacity where even an empty last message is too long.
[[nodiscard]] TruncatedPrompt truncate_chat(ChatTemplate chat_template,
                                            std::vector<ChatMessage> messages,
                                            const ChatOptions& options, const Tokenizer& tokenizer,
                                            std::size_t keep, Truncate which,
                                            const ContextLimits& limits);

}  // namespace fut::app
