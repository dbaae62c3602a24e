// From texts to the prompt's token ids: raw or in a chat template, and never longer than the
// context without a word about it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/options.h"
#include "engine/model_folder.h"
#include "tokenizer/chat_template.h"

namespace fut::app {

// The context of this run, and the largest that the model has.
struct ContextLimits {
  int tokens = 0;
  int model_tokens = 0;
  bool can_truncate = false;  // the command has --truncate
};

// --chat-template, else the folder's own. Throws Data where there is none: lists the names and
// --raw.
[[nodiscard]] ChatTemplate resolve_chat_template(const std::optional<ChatTemplate>& wanted,
                                                 const std::filesystem::path& folder);

// What the template functions take.
[[nodiscard]] ChatOptions chat_options(const FormOptions& form);

// A text to continue. Warns of a BOS that the user typed; throws Usage where no token is left.
[[nodiscard]] std::vector<TokenId> encode_raw(const Tokenizer& tokenizer, std::string_view text,
                                              bool parse_special);

// Ids that end a reply: the folder's, and the template's own end of turn. None with --ignore-eos.
[[nodiscard]] std::vector<TokenId> reply_end_ids(const ModelFolder& folder,
                                                 std::optional<ChatTemplate> chat_template,
                                                 bool ignore_eos);

// The bytes of a text that is context_tokens times the longest token: what is larger is refused
// unread. (Only blanks that a tokenizer folds together could make a larger text fit.)
[[nodiscard]] std::uint64_t most_prompt_bytes(const Tokenizer& tokenizer, int context_tokens);

// Throws Capacity where `text` has at least twice the context's tokens, after encoding about that
// much of it.
void refuse_hopeless_text(const Tokenizer& tokenizer, std::string_view text,
                          const ContextLimits& limits);

// The system turn of -sys or -sysf; one newline at a file's end is dropped. Throws Capacity where
// it can never fit, Data where its file cannot be read.
[[nodiscard]] std::string read_system_prompt(const PromptOptions& options,
                                             const Tokenizer& tokenizer,
                                             const ContextLimits& limits);

// A token's text; empty for an id past the tokenizer, of a padded vocabulary.
[[nodiscard]] std::string piece_of(const Tokenizer& tokenizer, TokenId id);

// Throws Capacity where the prompt leaves no room for one token: both counts and the way out.
void require_room(std::size_t prompt_tokens, const ContextLimits& limits);

}  // namespace fut::app
