// See the header.
#include "apps/truncation.h"

#include <algorithm>
#include <string>

namespace fut::app {
namespace {

std::span<const TokenId> part(std::span<const TokenId> ids, std::size_t count, Truncate which) {
  return which == Truncate::Head ? ids.last(count) : ids.first(count);
}

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// Removes the rest of a character that the cut went through.
void drop_split_character(std::string& text, Truncate which) {
  if (which == Truncate::Head) {
    const auto first = std::find_if_not(text.begin(), text.end(), is_continuation);
    text.erase(text.begin(), first);
    return;
  }
  std::size_t start = text.size();
  while (start > 0 && is_continuation(text[start - 1])) --start;
  if (start == 0) return;
  const auto lead = static_cast<unsigned char>(text[start - 1]);
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  if (text.size() - (start - 1) < length) text.erase(start - 1);
}

}  // namespace

std::size_t tokens_to_keep(std::int64_t max_new_tokens, int context_tokens) {
  const std::int64_t half = std::max(1, context_tokens / 2);
  const std::int64_t room = max_new_tokens < 0 ? half : std::min(max_new_tokens, half);
  return static_cast<std::size_t>(context_tokens - room);
}

TruncatedPrompt truncate_raw(std::vector<TokenId> ids, std::optional<TokenId> bos, std::size_t keep,
                             Truncate which) {
  const std::size_t dropped = ids.size() - keep;
  const std::size_t fixed = bos && ids.front() == *bos ? 1 : 0;
  const auto first = which == Truncate::Head
                         ? ids.begin() + static_cast<std::ptrdiff_t>(std::min(fixed, keep))
                         : ids.begin() + static_cast<std::ptrdiff_t>(keep);
  ids.erase(first, first + static_cast<std::ptrdiff_t>(dropped));
  return {std::move(ids), dropped};
}

TruncatedPrompt truncate_chat(ChatTemplate chat_template, std::vector<ChatMessage> messages,
                              const ChatOptions& options, const Tokenizer& tokenizer,
                              std::size_t keep, Truncate which, const ContextLimits& limits) {
  EncodeOptions body_options;
  body_options.add_bos = false;
  body_options.parse_special = options.parse_special;
  std::string& content = messages.back().content;
  const std::vector<TokenId> body = tokenizer.encode(content, body_options);
  content.clear();
  std::vector<TokenId> ids = encode_chat(chat_template, messages, options, tokenizer);
  // What stays may need the reply's room, but not all of the context.
  require_room(ids.size(), limits);
  keep = std::max(keep, ids.size());

  // The cut text may need another token or two than it had, so this may take a few rounds.
  std::size_t kept = std::min(body.size(), keep - ids.size());
  for (;;) {
    content = tokenizer.decode(part(body, kept, which), true);
    drop_split_character(content, which);
    ids = encode_chat(chat_template, messages, options, tokenizer);
    if (ids.size() <= keep || kept == 0) return {std::move(ids), body.size() - kept};
    kept -= std::min(kept, ids.size() - keep);
  }
}

}  // namespace fut::app
