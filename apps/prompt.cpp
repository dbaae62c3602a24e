// See the header.
#include "apps/prompt.h"

#include <algorithm>
#include <limits>

#include "apps/logging.h"
#include "apps/text_input.h"
#include "apps/words.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

std::string ways_out(const ContextLimits& limits) {
  std::string text = "shorten it";
  if (limits.model_tokens > limits.tokens) {
    text += fmt::format(", raise -c (this model has {})", limits.model_tokens);
  }
  if (limits.can_truncate) text += ", or drop a part with --truncate head|tail";
  return text;
}

}  // namespace

ChatTemplate resolve_chat_template(const std::optional<ChatTemplate>& wanted,
                                   const std::filesystem::path& folder) {
  if (wanted) return *wanted;
  if (const auto found = find_chat_template(folder)) return *found;
  throw data_error(
      "{}: no chat template in it (neither chat_template.jinja nor chat_template in "
      "tokenizer_config.json): choose one with --chat-template ({}) or continue plain text with "
      "fut run --raw",
      folder.string(), fmt::join(chat_template_names(), ", "));
}

ChatOptions chat_options(const FormOptions& form) {
  ChatOptions options;
  options.date = form.date;
  options.parse_special = form.parse_special.value_or(false);
  return options;
}

std::vector<TokenId> encode_raw(const Tokenizer& tokenizer, std::string_view text,
                                bool parse_special) {
  EncodeOptions options;
  options.parse_special = parse_special;
  const auto bos = tokenizer.bos_id();
  if (parse_special && bos && text.starts_with(tokenizer.piece(*bos))) {
    log_warning("the prompt starts with {}: taken as its BOS, no other is put in front",
                tokenizer.piece(*bos));
  }
  std::vector<TokenId> ids = tokenizer.encode(text, options);
  if (ids.empty()) {
    throw usage_error(
        "the prompt is empty and this tokenizer puts no BOS in front, so there is no token to "
        "start from; give a text with -p");
  }
  return ids;
}

std::vector<TokenId> reply_end_ids(const ModelFolder& folder,
                                   std::optional<ChatTemplate> chat_template, bool ignore_eos) {
  if (ignore_eos) return {};
  std::vector<TokenId> ids = folder.end_ids;
  if (chat_template) {
    const auto end = end_of_turn_id(*chat_template, folder.tokenizer);
    if (end && std::find(ids.begin(), ids.end(), *end) == ids.end()) ids.push_back(*end);
  }
  return ids;
}

std::uint64_t most_prompt_bytes(const Tokenizer& tokenizer, int context_tokens) {
  std::size_t longest = 1;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.piece(id).size());
  }
  return static_cast<std::uint64_t>(context_tokens) * longest;
}

void refuse_hopeless_text(const Tokenizer& tokenizer, std::string_view text,
                          const ContextLimits& limits) {
  // A cut may split a token, so a block counts a few tokens too many; twice the context is far
  // beyond that.
  constexpr std::size_t kBlockBytes = 1 << 16;
  const std::size_t enough = 2 * static_cast<std::size_t>(limits.tokens);
  EncodeOptions options;
  options.add_bos = false;
  std::size_t tokens = 0;
  for (std::size_t at = 0; at < text.size() && text.size() > kBlockBytes; at += kBlockBytes) {
    tokens += tokenizer.encode(text.substr(at, kBlockBytes), options).size();
    if (tokens < enough) continue;
    throw capacity_error(
        "the prompt has more than {} tokens ({} bytes) and the context holds {}, prompt and reply "
        "together: {}",
        enough, text.size(), limits.tokens, ways_out(limits));
  }
}

std::string read_system_prompt(const PromptOptions& options, const Tokenizer& tokenizer,
                               const ContextLimits& limits) {
  if (options.system.text) return *options.system.text;
  const std::string reason =
      fmt::format(" as a system prompt into a context of {} tokens", limits.tokens);
  InputText input =
      read_text(options.system, false, most_prompt_bytes(tokenizer, limits.tokens), reason);
  refuse_hopeless_text(tokenizer, input.text, limits);
  drop_final_newline(input.text);
  return std::move(input.text);
}

std::string piece_of(const Tokenizer& tokenizer, TokenId id) {
  return id < tokenizer.vocab_size() ? tokenizer.piece(id) : std::string();
}

void require_room(std::size_t prompt_tokens, const ContextLimits& limits) {
  if (prompt_tokens < static_cast<std::size_t>(limits.tokens)) return;
  throw capacity_error("the prompt has {} and the context holds {}, prompt and reply together: {}",
                       counted(prompt_tokens, "token"), limits.tokens, ways_out(limits));
}

}  // namespace fut::app
