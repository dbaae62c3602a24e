// What the readers of all kinds share: added tokens and what tokenizer_config.json decides; see
// tokenizer_files.h.
#include "tokenizer/tokenizer_files.h"

#include "kernels/error.h"
#include "tokenizer/data_file.h"

namespace fut {
namespace {

// Of all added tokens' spellings: the search for them has a node for each byte. Real files have a
// hundredth of it.
constexpr std::size_t kMostSpellingBytes = std::size_t{1} << 20;

}  // namespace

void add_added_tokens(std::span<const AddedToken> tokens, std::size_t count, Vocabulary& vocabulary,
                      const std::filesystem::path& path) {
  std::size_t spelt = 0;
  for (const AddedToken& token : tokens) {
    spelt += token.text.size();
    if (spelt > kMostSpellingBytes) {
      throw data_error("{}: its {} added tokens are spelt with more than the {} bytes supported",
                       path.string(), tokens.size(), kMostSpellingBytes);
    }
    Vocabulary::check_id(token.id, count, token.text, path);
    if (!vocabulary.set(token.id, token.text) && vocabulary.bytes(token.id) != token.text) {
      throw data_error("{}: id {} belongs to two tokens, '{}' and the added '{}'", path.string(),
                       token.id, excerpt(vocabulary.bytes(token.id)), excerpt(token.text));
    }
    if (token.special) vocabulary.mark_special(token.id);
  }
}

std::optional<TokenId> find_token(const TokenizerParts& parts, std::string_view spelling) {
  for (const AddedToken& token : parts.added_tokens) {
    if (token.text == spelling) return token.id;
  }
  const TokenId id = parts.vocabulary->find(spelling);
  return id >= 0 ? std::optional(id) : std::nullopt;
}

void apply_config(const TokenizerConfig& config, TokenizerParts& parts) {
  if (config.bos_token) {
    if (const auto id = find_token(parts, *config.bos_token)) parts.bos = id;
  }
  if (config.eos_token) {
    if (const auto id = find_token(parts, *config.eos_token)) parts.eos = id;
  }
  parts.adds_bos = config.add_bos.value_or(parts.adds_bos && parts.bos);
  if (!parts.adds_bos || parts.bos) return;
  throw data_error(
      "{}: 'add_bos_token' is true, but 'bos_token' ({}) is no token of {}; correct one of the two",
      config.path.string(), config.bos_token ? "'" + excerpt(*config.bos_token) + "'" : "not given",
      parts.source.string());
}

}  // namespace fut
