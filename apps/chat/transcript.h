// What was said so far, in turns, and as the ids of the next prompt. Knows no engine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tokenizer/chat_template.h"

namespace fut::app {

struct Turn {
  std::string user;
  std::string reply;
};

class Transcript {
 public:
  // `tokenizer` must outlive it.
  Transcript(ChatTemplate chat_template, ChatOptions form, const Tokenizer& tokenizer)
      : template_(chat_template), form_(std::move(form)), tokenizer_(tokenizer) {}

  [[nodiscard]] ChatTemplate chat_template() const { return template_; }
  [[nodiscard]] const Tokenizer& tokenizer() const { return tokenizer_; }

  // Throws Data where the template has no system turn.
  void set_system(std::optional<std::string> text);
  [[nodiscard]] const std::optional<std::string>& system() const { return system_; }

  [[nodiscard]] const std::vector<Turn>& turns() const { return turns_; }
  void add(Turn turn) { turns_.push_back(std::move(turn)); }
  // Takes back the last turn; nullopt: there is none.
  std::optional<Turn> take_last();
  void drop_oldest(std::size_t turns);
  void clear() { turns_.clear(); }

  // Ids of the conversation with one more turn, up to the opening of its reply; `skip`: without that
  // many of the oldest turns. Throws Data where the template refuses something.
  [[nodiscard]] std::vector<TokenId> encode_with(const std::string& user,
                                                 std::size_t skip = 0) const;
  // Tokens of what was said; 0 where nothing was.
  [[nodiscard]] std::size_t num_tokens() const;

  // As a file of messages holds it.
  [[nodiscard]] std::vector<ChatMessage> messages() const;
  // Replaces everything. Throws Data, naming the message, where they are not a system turn at most
  // and then turns of user and assistant; nothing is changed then.
  void set_messages(const std::vector<ChatMessage>& messages);

 private:
  [[nodiscard]] std::vector<ChatMessage> messages_from(std::size_t first_turn) const;

  ChatTemplate template_;
  ChatOptions form_;
  const Tokenizer& tokenizer_;
  std::optional<std::string> system_;
  std::vector<Turn> turns_;
};

}  // namespace fut::app
