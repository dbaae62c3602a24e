// Conversations to prompts. There is no template engine: the known templates are written out here
// and a checkpoint's own template is recognised by a hash of its text. One that is not recognised
// is an error that lists the names, never a silent fallback.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace fut {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

enum class ChatTemplate { Llama2, Llama3, Llama31, Llama32, Llama33, ChatMl, Demo };

struct ChatOptions {
  // "26 Jul 2024"; without it what the template itself says.
  std::optional<std::string> date = std::nullopt;
  bool add_generation_prompt = true;  // end with the opening of the assistant's turn
  bool parse_special = false;         // special tokens inside message bodies become control tokens
};

// The names that --chat-template takes, in the order they are listed to users.
[[nodiscard]] std::span<const std::string_view> chat_template_names();
[[nodiscard]] std::string_view chat_template_name(ChatTemplate t);
[[nodiscard]] ChatTemplate chat_template_from_name(
    std::string_view name);  // throws Usage, lists names

// Reads chat_template.jinja, else the chat_template of tokenizer_config.json. nullopt: the folder
// has no template at all. Throws Data where there is one that is not recognised: says so, lists the
// names.
[[nodiscard]] std::optional<ChatTemplate> find_chat_template(const std::filesystem::path& folder);

// A conversation as text, control tokens spelt out. Throws Data for roles or orders that the
// template refuses (the message's number and role are named).
[[nodiscard]] std::string render_chat(ChatTemplate t, std::span<const ChatMessage> messages,
                                      const ChatOptions& options, const Tokenizer& tokenizer);

// The same conversation as ids: control tokens by id, message bodies as plain text (a user who
// types `<|eot_id|>` gets those characters), one BOS. Throws Data where the tokenizer lacks a
// control token that the template needs.
[[nodiscard]] std::vector<TokenId> encode_chat(ChatTemplate t,
                                               std::span<const ChatMessage> messages,
                                               const ChatOptions& options,
                                               const Tokenizer& tokenizer);

// The control token that ends an assistant's turn in this template, where the tokenizer has it.
[[nodiscard]] std::optional<TokenId> end_of_turn_id(ChatTemplate t, const Tokenizer& tokenizer);

}  // namespace fut
