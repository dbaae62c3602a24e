// See the header.
#include "apps/request_prompt.h"

#include "apps/logging.h"
#include "apps/truncation.h"
#include "apps/words.h"

namespace fut::app {
namespace {

bool has_to_be_cut(const RequestForm& request, std::size_t tokens) {
  return tokens >= static_cast<std::size_t>(request.limits.tokens) &&
         request.reply.truncate != Truncate::No;
}

std::size_t kept(const RequestForm& request) {
  return tokens_to_keep(request.reply.max_new_tokens, request.limits.tokens);
}

std::vector<TokenId> told(TruncatedPrompt cut, Truncate which) {
  log_warning("dropped the {} {} of the prompt, {} left",
              which == Truncate::Head ? "first" : "last", counted(cut.dropped, "token"),
              counted(cut.ids.size(), "token"));
  return std::move(cut.ids);
}

}  // namespace

std::vector<TokenId> raw_prompt_ids(const RequestForm& request, std::string_view text) {
  std::vector<TokenId> ids =
      encode_raw(request.tokenizer, text, request.form.parse_special.value_or(true));
  if (has_to_be_cut(request, ids.size())) {
    ids = told(truncate_raw(std::move(ids), request.tokenizer.bos_id(), kept(request),
                            request.reply.truncate),
               request.reply.truncate);
  }
  require_room(ids.size(), request.limits);
  return ids;
}

std::vector<TokenId> chat_prompt_ids(const RequestForm& request, ChatTemplate chat_template,
                                     std::vector<ChatMessage> messages) {
  const ChatOptions form = chat_options(request.form);
  std::vector<TokenId> ids = encode_chat(chat_template, messages, form, request.tokenizer);
  if (has_to_be_cut(request, ids.size())) {
    ids = told(truncate_chat(chat_template, std::move(messages), form, request.tokenizer,
                             kept(request), request.reply.truncate, request.limits),
               request.reply.truncate);
  }
  require_room(ids.size(), request.limits);
  return ids;
}

}  // namespace fut::app
