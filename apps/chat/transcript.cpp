// See the header.
#include "apps/chat/transcript.h"

#include "kernels/error.h"

namespace fut::app {

void Transcript::set_system(std::optional<std::string> text) {
  std::optional<std::string> before = std::move(system_);
  system_ = std::move(text);
  try {
    (void)encode_with("");
  } catch (...) {
    system_ = std::move(before);
    throw;
  }
}

std::optional<Turn> Transcript::take_last() {
  if (turns_.empty()) return std::nullopt;
  Turn last = std::move(turns_.back());
  turns_.pop_back();
  return last;
}

void Transcript::drop_oldest(std::size_t turns) {
  turns_.erase(turns_.begin(),
               turns_.begin() + static_cast<std::ptrdiff_t>(std::min(turns, turns_.size())));
}

std::vector<ChatMessage> Transcript::messages_from(std::size_t first_turn) const {
  std::vector<ChatMessage> messages;
  if (system_) messages.push_back({"system", *system_});
  for (std::size_t i = first_turn; i < turns_.size(); ++i) {
    messages.push_back({"user", turns_[i].user});
    messages.push_back({"assistant", turns_[i].reply});
  }
  return messages;
}

std::vector<ChatMessage> Transcript::messages() const {
  return messages_from(0);
}

std::vector<TokenId> Transcript::encode_with(const std::string& user, std::size_t skip) const {
  std::vector<ChatMessage> messages = messages_from(std::min(skip, turns_.size()));
  messages.push_back({"user", user});
  return encode_chat(template_, messages, form_, tokenizer_);
}

std::size_t Transcript::num_tokens() const {
  const std::vector<ChatMessage> messages = messages_from(0);
  if (messages.empty()) return 0;
  ChatOptions form = form_;
  form.add_generation_prompt = false;
  // Some templates have no system turn that stands alone: the question that follows counts too.
  if (turns_.empty()) return encode_with("").size();
  return encode_chat(template_, messages, form, tokenizer_).size();
}

void Transcript::set_messages(const std::vector<ChatMessage>& messages) {
  std::optional<std::string> system;
  std::vector<Turn> turns;
  std::size_t i = 0;
  const auto wanted = [&](std::string_view role) -> const std::string& {
    if (i >= messages.size()) {
      throw data_error("message {} is missing: after a user's message the assistant's is wanted",
                       i + 1);
    }
    if (messages[i].role != role) {
      throw data_error("message {} is of role '{}', '{}' is wanted there", i + 1, messages[i].role,
                       role);
    }
    return messages[i++].content;
  };
  if (!messages.empty() && messages[0].role == "system") system = wanted("system");
  while (i < messages.size()) {
    std::string user = wanted("user");
    turns.push_back({std::move(user), wanted("assistant")});
  }
  set_system(std::move(system));  // throws before anything is changed
  turns_ = std::move(turns);
}

}  // namespace fut::app
