// Names of the chat templates, and how a checkpoint's own template is recognised; see
// chat_template.h. What the templates make of a conversation is in chat_render.cpp.
#include "tokenizer/chat_template.h"

#include <array>
#include <fmt/ranges.h>
#include <utility>

#include "kernels/error.h"
#include "tokenizer/data_file.h"
#include "tokenizer/sha256.h"
#include "tokenizer/tokenizer_config.h"

namespace fut {
namespace {

// In the order of enum ChatTemplate.
constexpr std::array<std::string_view, 7> kNames = {
    "llama-2", "llama-3", "llama-3.1", "llama-3.2", "llama-3.3", "chatml", "demo"};

// SHA-256 of published template texts, normalised as below. A text may be here in two spellings of
// its line breaks: as a line break inside a quoted string, and as backslash and n.
constexpr std::pair<std::string_view, ChatTemplate> kKnownTexts[] = {
    // Llama-2-chat, and the same with one blank less in an expression
    {"e8d5b5a546d3f19df16a5320c614fab05bdc4edd50e850f1afd947b503ea41cf", ChatTemplate::Llama2},
    {"9780fae5bfea3cfd7be37d328c6edfd296a8869be8131495bbe7eb37e780c88c", ChatTemplate::Llama2},
    {"1623de5159d584da0b6c78f86ae57b2328746122f2c58446ab7f84bce8c7c57f", ChatTemplate::Llama2},
    {"17b9854f459dd1e767c9a01a117f61fc1ddf30ca7e5fdd450e4ea20933f7933c", ChatTemplate::Llama2},
    // Llama-3-Instruct; the last is the first one published, which always asks for a reply
    {"ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122", ChatTemplate::Llama3},
    {"4f46ecd43418f216df8c26936c60e5d04bcc81db47db5d86fbe889f64212dd4c", ChatTemplate::Llama3},
    {"b48c47f6443892716176eb200bf4ef108f64e06ca26ed0fa8ebc0a4b3992fcb2", ChatTemplate::Llama3},
    // Llama-3.1-Instruct, whose text Llama-3.3-Instruct has too
    {"93c0e9aa3629bbd77e68dbc0f5621f6e6b23aa8d74b932595cdb8d64684526d7", ChatTemplate::Llama31},
    // Llama-3.2-Instruct
    {"d82792f95932f1c9cef5c4bd992f171225e3bf8c7b609b4557c9e1ec96be819f", ChatTemplate::Llama32},
    // ChatML: the plain loop as OpenHermes has it, with a default for add_generation_prompt, with
    // other blanks, with the line break inside the end token's string, with BOS in front
    {"fcf7a096fe99a48fd9ad2b250bf9237e96e8f48bffec1c7ea4d3f225176cd40e", ChatTemplate::ChatMl},
    {"153280e3ff55d19da1398bdb3914ee2a51b80429bfaedde11d7d216c39db80f3", ChatTemplate::ChatMl},
    {"d7b5b8c7b58f7a6bf868aa46a5f73ee976d7292f40fcb9c3e7a1defd8d235cfb", ChatTemplate::ChatMl},
    {"58c1a1f04baa7adaeaba1f90267c3d57d9396f0c1f0129bdde9e76d3c6784af7", ChatTemplate::ChatMl},
    {"66edfb854931c933d3ac94f507626dd4fa2d5ca0a9b1036b11729d296a7392ac", ChatTemplate::ChatMl},
    {"f91864928fccff928b3068ca784db6275e655e400ccbb28f61d92c0090caf3b3", ChatTemplate::ChatMl},
    {"5fd94b9e1c6215f7db44f5b5f64edf04f6dd66ae67f4dc94871b118ccbfd1280", ChatTemplate::ChatMl},
    {"fddf77f8db6fbfb315f82f775806550ff5cca70bab928b9d520b3ee5c875cc6b", ChatTemplate::ChatMl},
    {"81693fe4b9b493936757765507bb74421ffb200593bb75d179cee623be224ba1", ChatTemplate::ChatMl},
    {"e9a55165c917b5ca690dd6547ab7ac75bd627fd038ad90bcd5e388fe9197b1ab", ChatTemplate::ChatMl},
    {"17762d2e5131cb2a950db7dd5700c50095547773d3302b52baebe9ae32257a55", ChatTemplate::ChatMl},
    {"f950548988e50713a9975a11be0eaf1d29c4fe4be0ba22a57daeebbc27a7adb9", ChatTemplate::ChatMl},
    {"68268d4bc1d650084b6b70d429c28c731b651126ee7bec82cd124cc782af9d0d", ChatTemplate::ChatMl},
    {"a805e50fed68938a076b07e2e602639611b50b1ced0e50f11eb92f1ba25be4dc", ChatTemplate::ChatMl},
    // the demonstration model
    {"d38d930a59518da3ed26e0e0d31e2b838361d439c3ceea067ecd64bf0c8317b2", ChatTemplate::Demo},
};

// Line ends as \n, and one of them at the very end dropped: Jinja reads a template in this way, so
// texts that differ in nothing else are the same template.
std::string normalised(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    out.push_back(text[i] == '\r' ? '\n' : text[i]);
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

std::string name_list() {
  return fmt::format("{}", fmt::join(kNames, ", "));
}

}  // namespace

std::span<const std::string_view> chat_template_names() {
  return kNames;
}

std::string_view chat_template_name(ChatTemplate t) {
  return kNames[static_cast<std::size_t>(t)];
}

ChatTemplate chat_template_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<ChatTemplate>(i);
  }
  throw usage_error("--chat-template: '{}' is none of {}", excerpt(name), name_list());
}

std::optional<ChatTemplate> find_chat_template(const std::filesystem::path& folder) {
  std::filesystem::path path = folder / "chat_template.jinja";
  std::optional<std::string> text;
  if (is_there(path)) {
    text = read_data_file(path);
  } else {
    path = folder / "tokenizer_config.json";
    text = read_config_chat_template(folder);
  }
  if (!text) return std::nullopt;
  const std::string hash = sha256_hex(normalised(*text));
  for (const auto& [known, which] : kKnownTexts) {
    if (known == hash) return which;
  }
  throw data_error(
      "{}: the chat template ({} bytes, SHA-256 {}) is not one that is known; name the one to use "
      "with --chat-template ({}) or complete plain text with --raw",
      path.string(), text->size(), hash, name_list());
}

}  // namespace fut
