// The ids of one request, raw or in the chat form, cut where --truncate asks for that.
#pragma once

#include <string_view>
#include <vector>

#include "apps/options.h"
#include "apps/prompt.h"
#include "tokenizer/chat_template.h"

namespace fut::app {

// What decides it, of a run or of one row of a batch. All must outlive it.
struct RequestForm {
  const FormOptions& form;
  const ReplyOptions& reply;
  const Tokenizer& tokenizer;
  const ContextLimits& limits;
};

// Throw Usage where no token is left, Capacity where a prompt that must not be cut leaves no room for
// a reply. What was dropped is told.
[[nodiscard]] std::vector<TokenId> raw_prompt_ids(const RequestForm& request,
                                                  std::string_view text);
[[nodiscard]] std::vector<TokenId> chat_prompt_ids(const RequestForm& request,
                                                   ChatTemplate chat_template,
                                                   std::vector<ChatMessage> messages);

}  // namespace fut::app
