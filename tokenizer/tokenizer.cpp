// The public face: which file of a folder is read, special tokens, BOS, and the way back to text.
// What differs between the kinds is behind TextEncoder.
#include "tokenizer/tokenizer.h"

#include <utility>

#include "kernels/error.h"
#include "tokenizer/data_file.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/tokenizer_files.h"
#include "tokenizer/tokenizer_impl.h"

namespace fut {

class TokenizerImpl {
 public:
  explicit TokenizerImpl(TokenizerParts p) : parts(std::move(p)), all_tokens(parts.added_tokens) {
    for (AddedToken& token : parts.added_tokens) token.special |= steers(token);
    std::vector<AddedToken> words;
    for (const AddedToken& token : parts.added_tokens) {
      if (!token.special) words.push_back(token);
    }
    added_words = SpecialTokenMatcher(words);
  }

  // Calls on_text(stretch) and on_token(match) for `text` from left to right. Words that were added
  // to the vocabulary are always found; control tokens only with `parse_special`.
  template <class OnText, class OnToken>
  void sections(std::string_view text, bool parse_special, OnText on_text, OnToken on_token) const {
    const SpecialTokenMatcher& matcher = parse_special ? all_tokens : added_words;
    std::size_t pos = 0;
    while (const auto match = matcher.next(text, pos)) {
      if (match->begin > pos) on_text(text.substr(pos, match->begin - pos));
      on_token(*match);
      pos = match->end;
    }
    if (pos < text.size()) on_text(text.substr(pos));
  }

  // Files that were re-saved often lose the flag of a control token. What is spelt as one, or begins
  // or ends a text, must not be typed by a user all the same.
  [[nodiscard]] bool steers(const AddedToken& token) const {
    return (token.text.starts_with("<|") && token.text.ends_with("|>")) || token.id == parts.bos ||
           token.id == parts.eos;
  }

  TokenizerParts parts;
  SpecialTokenMatcher all_tokens;
  SpecialTokenMatcher added_words;
};

namespace {

TokenizerParts read_folder(const std::filesystem::path& folder) {
  const std::filesystem::path json = folder / "tokenizer.json";
  const std::filesystem::path model = folder / "tokenizer.model";
  const bool has_json = is_there(json);
  if (!has_json && !is_there(model)) {
    throw data_error("{}: has neither tokenizer.json nor tokenizer.model; one of the two is needed",
                     folder.string());
  }
  const TokenizerConfig config = read_tokenizer_config(folder);
  const std::filesystem::path& path = has_json ? json : model;
  const std::string content = read_data_file(path);
  if (has_json || content.starts_with('{')) return read_hf_tokenizer(content, path, config);
  if (looks_like_rank_table(content)) return read_rank_table(content, path, config);
  return read_sentencepiece(content, path, config);
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& folder) {
  return Tokenizer(std::make_unique<TokenizerImpl>(read_folder(folder)));
}

Tokenizer::Tokenizer(std::unique_ptr<TokenizerImpl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  const TokenizerParts& parts = impl_->parts;
  std::vector<TokenId> ids;
  const bool wants_bos = options.add_bos && parts.adds_bos;
  if (wants_bos) ids.push_back(*parts.bos);
  impl_->sections(
      text, options.parse_special,
      [&](std::string_view stretch) { parts.encoder->encode(stretch, ids); },
      [&](const SpecialTokenMatcher::Match& match) {
        const bool typed_bos = wants_bos && ids.size() == 1 && match.begin == 0;
        if (!typed_bos || match.id != *parts.bos) ids.push_back(match.id);
      });
  return ids;
}

std::vector<std::string> Tokenizer::split(std::string_view text, bool parse_special) const {
  std::vector<std::string> pieces;
  impl_->sections(
      text, parse_special,
      [&](std::string_view stretch) {
        impl_->parts.encoder->split(stretch,
                                    [&](std::string_view piece) { pieces.emplace_back(piece); });
      },
      [&](const SpecialTokenMatcher::Match& match) {
        pieces.emplace_back(text.substr(match.begin, match.end - match.begin));
      });
  return pieces;
}

std::string Tokenizer::piece(TokenId id) const {
  if (id < 0 || id >= vocab_size()) {
    throw data_error("token id {} is outside the vocabulary of {} ({} tokens)", id,
                     source().string(), vocab_size());
  }
  return impl_->parts.vocabulary->bytes(id);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool show_special) const {
  std::string text;
  bool at_start = impl_->parts.dummy_prefix;
  for (const TokenId id : ids) {
    const std::string bytes = piece(id);
    if (is_special(id) && !show_special) continue;
    const bool dummy = at_start && bytes.starts_with(' ');
    text.append(bytes, dummy ? 1 : 0);
    at_start = false;
  }
  return text;
}

int Tokenizer::vocab_size() const {
  return impl_->parts.vocabulary->size();
}

bool Tokenizer::is_special(TokenId id) const {
  return impl_->parts.vocabulary->is_special(id);
}

std::optional<TokenId> Tokenizer::find(std::string_view token) const {
  return find_token(impl_->parts, token);
}

std::optional<TokenId> Tokenizer::bos_id() const {
  return impl_->parts.bos;
}
std::optional<TokenId> Tokenizer::eos_id() const {
  return impl_->parts.eos;
}
bool Tokenizer::adds_bos() const {
  return impl_->parts.adds_bos;
}
bool Tokenizer::has_dummy_prefix() const {
  return impl_->parts.dummy_prefix;
}
std::string_view Tokenizer::kind() const {
  return impl_->parts.kind;
}
const std::filesystem::path& Tokenizer::source() const {
  return impl_->parts.source;
}

}  // namespace fut
