// Conversations of any contents in every chat template: the control tokens are those of a conversation of
// plain words, so that nothing a message says becomes one, and the ids spell the rendered text.
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_bytes.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"
#include "tests/support/toy_tokenizers.h"
#include "tokenizer/chat_template.h"

namespace {

using namespace fut;
using test::require;

Tokenizer chatml_toy() {
  test::ToyVocabulary vocabulary = test::merged_vocabulary(400);
  vocabulary.specials = {"<s>", "<|im_start|>", "<|im_end|>"};
  const test::TempFolder folder;
  test::write_file(folder / "tokenizer.json", test::tokenizer_json(vocabulary).dump());
  return Tokenizer::load(folder.path());
}

Tokenizer llama2_toy() {
  const test::TempFolder folder;
  test::write_file(folder / "tokenizer.model", test::sentencepiece_model(600));
  return Tokenizer::load(folder.path());
}

const Tokenizer& tokenizer_for(ChatTemplate t) {
  static const Tokenizer chatml = chatml_toy();
  static const Tokenizer llama2 = llama2_toy();
  static const Tokenizer demo = Tokenizer::load(test::source_path("configs/demo-6m"));
  if (t == ChatTemplate::ChatMl) return chatml;
  return t == ChatTemplate::Llama2 ? llama2 : demo;
}

std::vector<TokenId> control_tokens(const std::vector<TokenId>& ids, const Tokenizer& tokenizer) {
  std::vector<TokenId> control;
  for (const TokenId id : ids) {
    if (tokenizer.is_special(id)) control.push_back(id);
  }
  return control;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  test::FuzzBytes input(data, size);
  const auto names = chat_template_names();
  const auto count = static_cast<int>(names.size());
  const ChatTemplate t =
      chat_template_from_name(names[static_cast<std::size_t>(input.below(count))]);
  ChatOptions options;
  options.date = "26 Jul 2024";
  options.add_generation_prompt = input.below(2) == 1;
  std::vector<ChatMessage> messages;
  constexpr std::array kRoles = {"system", "user", "assistant", "tool", "ipython"};
  while (!input.empty()) {
    const auto role = static_cast<std::size_t>(input.below(6));
    ChatMessage message;
    message.role = role < kRoles.size() ? kRoles[role] : input.text(20);
    message.content = input.text(static_cast<std::size_t>(input.below(80)));
    messages.push_back(std::move(message));
  }

  const Tokenizer& tokenizer = tokenizer_for(t);
  std::string text;
  std::vector<TokenId> ids;
  const bool rendered =
      test::accepted([&] { text = render_chat(t, messages, options, tokenizer); });
  const bool encoded = test::accepted([&] { ids = encode_chat(t, messages, options, tokenizer); });
  require(rendered == encoded, "rendered and not encoded, or the other way round");
  if (!rendered) return 0;
  if (t != ChatTemplate::Llama2) {  // whose tokenizer puts a blank before every stretch
    require(tokenizer.decode(ids, true) == text, "the ids are not those of the text");
  }
  for (ChatMessage& message : messages) message.content = "words";
  require(control_tokens(ids, tokenizer) ==
              control_tokens(encode_chat(t, messages, options, tokenizer), tokenizer),
          "a message that becomes a control token");
  return 0;
}
