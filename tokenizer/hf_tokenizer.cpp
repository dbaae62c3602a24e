// tokenizer.json to a tokenizer: vocabulary, merges, added tokens, and the check that it is one of
// the two BPE kinds that Llama checkpoints have. See tokenizer_files.h and hf_pipeline.h.
#include <algorithm>
#include <utility>

#include "kernels/error.h"
#include "tokenizer/byte_fallback_bpe.h"
#include "tokenizer/byte_level_bpe.h"
#include "tokenizer/data_file.h"
#include "tokenizer/hf_json_reader.h"
#include "tokenizer/hf_pipeline.h"
#include "tokenizer/tokenizer_files.h"
#include "tokenizer/utf8.h"

namespace fut {
namespace {

using nlohmann::json;
using Kind = HfPipeline::Kind;

// Tokens by their spelling in the file and the other way round; the views lie in the file's list.
class Spellings {
 public:
  Spellings(std::size_t count, const std::filesystem::path& path) : index_(count, path) {}

  // Throws Data where the spelling or the id is there already; `id` passed check_id.
  void add(std::string_view spelling, TokenId id, const std::filesystem::path& path) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= by_id_.size()) by_id_.resize(at + 1);
    if (by_id_[at].data() != nullptr) {
      throw data_error("{}: model.vocab: id {} belongs to two tokens, '{}' and '{}'", path.string(),
                       id, excerpt(by_id_[at]), excerpt(spelling));
    }
    by_id_[at] = spelling;
    const TokenId holder = index_.insert(id, [this](TokenId other) { return of(other); });
    if (holder == id) return;
    throw data_error("{}: model.vocab: token '{}' is there twice, with ids {} and {}",
                     path.string(), excerpt(spelling), holder, id);
  }

  // The id, or -1.
  [[nodiscard]] TokenId find(std::string_view spelling) const {
    return index_.find(spelling, [this](TokenId id) { return of(id); });
  }

 private:
  [[nodiscard]] std::string_view of(TokenId id) const {
    return by_id_[static_cast<std::size_t>(id)];
  }

  std::vector<std::string_view> by_id_;
  TokenIndex index_;
};

struct ModelSettings {
  bool ignore_merges = false;
  bool byte_fallback = false;
  bool fuse_unknown = false;
  std::optional<std::string> unknown_token;
};

ModelSettings read_model(const json& file, const std::filesystem::path& path) {
  const std::string where = path.string() + ": model";
  const auto model = file.is_object() ? file.find("model") : file.end();
  if (model == file.end() || !model->is_object()) {
    throw data_error("{}: has no object 'model', so it is no tokenizer file", path.string());
  }
  const std::string type = string_field(*model, "type", where).value_or("BPE");
  if (type != "BPE") {
    throw data_error("{}: type {} is not supported, only BPE is", where, excerpt(type));
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!string_field(*model, key, where).value_or("").empty()) {
      throw data_error("{}: '{}' is not supported", where, key);
    }
  }
  const auto dropout = model->find("dropout");
  if (dropout != model->end() && !dropout->is_null() && *dropout != 0) {
    throw data_error("{}: 'dropout' makes tokens random and is not supported; set it to null",
                     where);
  }
  ModelSettings settings;
  settings.ignore_merges = bool_field(*model, "ignore_merges", where).value_or(false);
  settings.byte_fallback = bool_field(*model, "byte_fallback", where).value_or(false);
  settings.fuse_unknown = bool_field(*model, "fuse_unk", where).value_or(false);
  settings.unknown_token = string_field(*model, "unk_token", where);
  return settings;
}

std::vector<AddedToken> read_added_tokens(const json& file, const std::filesystem::path& path) {
  std::vector<AddedToken> tokens;
  const auto list = file.find("added_tokens");
  if (list == file.end() || list->is_null()) return tokens;
  const std::string where = path.string() + ": added_tokens";
  if (!list->is_array()) throw data_error("{}: must be a list, not {}", where, list->type_name());
  for (const json& entry : *list) {
    const auto id =
        entry.is_object() ? int_field(entry, "id", where) : std::optional<std::int64_t>();
    if (!id) throw data_error("{}: entry {} has no id", where, tokens.size() + 1);
    tokens.push_back(parse_added_token(entry, *id, where));
  }
  return tokens;
}

// Checks ids and spellings of model.vocab and gives ids their bytes. Tokens that are also added
// ones are spelt as they are, and no text makes them by merging alone: they are not indexed.
class VocabularyBuilder {
 public:
  VocabularyBuilder(const HfTokenizerJson& file, const std::vector<AddedToken>& added,
                    const std::filesystem::path& path)
      : file_(file),
        path_(path),
        count_(file.vocabulary.size() + added.size()),
        spellings_(file.vocabulary.size(), path) {
    for (const auto& [token, id] : file.vocabulary) {
      Vocabulary::check_id(id, count_, token, path);
      spellings_.add(token, static_cast<TokenId>(id), path);
    }
    check_added(added);
    add_added_tokens(added, count_, vocabulary_, path);
    for (const AddedToken& token : added) added_ids_.push_back(token.id);
    std::sort(added_ids_.begin(), added_ids_.end());
    vocabulary_.reserve_index(file.vocabulary.size(), path);
  }

  [[nodiscard]] const Spellings& spellings() const { return spellings_; }

  Vocabulary byte_level() {
    for (const auto& [token, id] : file_.vocabulary) {
      if (is_added(token, id)) continue;
      ByteLevelToken decoded = decode_byte_level(token);
      const auto at = static_cast<TokenId>(id);
      set(at, std::move(decoded.bytes), token);
      if (decoded.spelt) static_cast<void>(vocabulary_.index(at));
    }
    return std::move(vocabulary_);
  }

  // Ordinary tokens come first in the index: <0x41> is found by "A" only where "A" is no token.
  Vocabulary byte_fallback() {
    for (const bool fallback : {false, true}) {
      for (const auto& [token, id] : file_.vocabulary) {
        const int byte = fallback_byte(token);
        if ((byte >= 0) != fallback || is_added(token, id)) continue;
        const auto at = static_cast<TokenId>(id);
        set(at, byte >= 0 ? std::string(1, static_cast<char>(byte)) : unmark_blanks(token), token);
        static_cast<void>(vocabulary_.index(at));
      }
    }
    return std::move(vocabulary_);
  }

 private:
  void check_added(const std::vector<AddedToken>& added) const {
    for (const AddedToken& token : added) {
      const TokenId found = spellings_.find(token.text);
      if (found < 0 || found == token.id) continue;
      throw data_error("{}: token '{}' has two ids, {} in the vocabulary and {} as an added token",
                       path_.string(), excerpt(token.text), found, token.id);
    }
  }

  [[nodiscard]] bool is_added(const std::string& token, std::int64_t id) const {
    const auto at = static_cast<TokenId>(id);
    return std::binary_search(added_ids_.begin(), added_ids_.end(), at) &&
           vocabulary_.bytes(at) == token;
  }

  void set(TokenId id, std::string bytes, const std::string& token) {
    if (vocabulary_.set(id, std::move(bytes))) return;
    throw data_error("{}: id {} belongs to two tokens, '{}' of model.vocab and the added '{}'",
                     path_.string(), id, excerpt(token), excerpt(vocabulary_.bytes(id)));
  }

  const HfTokenizerJson& file_;
  const std::filesystem::path& path_;
  std::size_t count_;
  Spellings spellings_;
  std::vector<TokenId> added_ids_;
  Vocabulary vocabulary_;
};

MergeTable read_merges(const HfTokenizerJson& file, const Spellings& spellings,
                       const std::filesystem::path& path) {
  MergeTable merges(file.merges.size(), path);
  std::string joined;
  for (std::size_t i = 0; i < file.merges.size(); ++i) {
    const auto& [left, right] = file.merges[i];
    joined.assign(left).append(right);
    const auto id_of = [&](const std::string& token) {
      const TokenId id = spellings.find(token);
      if (id >= 0) return id;
      throw data_error("{}: model.merges: entry {} needs token '{}', which model.vocab lacks",
                       path.string(), i + 1, excerpt(token));
    };
    merges.insert(id_of(left), id_of(right), {static_cast<std::uint32_t>(i), id_of(joined)});
  }
  return merges;
}

ByteFallbackBpe::Symbols read_symbols(const HfTokenizerJson& file, const Spellings& spellings,
                                      const ModelSettings& settings, bool dummy_prefix,
                                      const std::filesystem::path& path) {
  ByteFallbackBpe::Symbols symbols;
  symbols.dummy_prefix = dummy_prefix;
  symbols.fuse_unknown = settings.fuse_unknown;
  symbols.bytes.fill(-1);
  for (const auto& [token, number] : file.vocabulary) {
    const auto id = static_cast<TokenId>(number);
    if (const int byte = fallback_byte(token); byte >= 0) {
      symbols.bytes[static_cast<std::size_t>(byte)] = id;
    } else if (!token.empty() && utf8::char_length(token, 0) == token.size()) {
      symbols.characters.emplace(utf8::code_point(token, 0, token.size()), id);
    }
  }
  if (settings.unknown_token) {
    const TokenId found = spellings.find(*settings.unknown_token);
    if (found >= 0) symbols.unknown = found;
  }
  if (spellings.find(kBlankMark) < 0) {
    throw data_error("{}: model.vocab: no token for the blank (U+2581)", path.string());
  }
  const auto missing = std::find(symbols.bytes.begin(), symbols.bytes.end(), -1);
  if (missing != symbols.bytes.end() && !symbols.unknown) {
    throw data_error("{}: model.vocab: no token <0x{:02X}> and no unknown token to stand for it",
                     path.string(), missing - symbols.bytes.begin());
  }
  return symbols;
}

}  // namespace

TokenizerParts read_hf_tokenizer(std::string_view text, const std::filesystem::path& path,
                                 const TokenizerConfig& config) {
  const HfTokenizerJson file = read_hf_tokenizer_json(text, path);
  const ModelSettings settings = read_model(file.rest, path);
  const HfPipeline pipeline = read_hf_pipeline(file.rest, path);
  if (pipeline.kind == Kind::ByteFallback && !settings.byte_fallback) {
    throw data_error(
        "{}: BPE with neither a ByteLevel pre-tokenizer nor byte_fallback is not supported",
        path.string());
  }

  TokenizerParts parts;
  parts.source = path;
  parts.added_tokens = read_added_tokens(file.rest, path);
  VocabularyBuilder builder(file, parts.added_tokens, path);
  MergeTable merges = read_merges(file, builder.spellings(), path);
  if (pipeline.kind == Kind::ByteLevel) {
    const auto vocabulary = std::make_shared<const Vocabulary>(builder.byte_level());
    std::optional<SplitPattern> pattern;
    if (pipeline.split_regex) pattern.emplace(*pipeline.split_regex, path);
    parts.vocabulary = vocabulary;
    parts.encoder = std::make_unique<ByteLevelBpe>(
        vocabulary, std::move(merges), std::move(pattern), settings.ignore_merges, path);
    parts.kind = "byte-level BPE (tokenizer.json)";
  } else {
    parts.encoder = std::make_unique<ByteFallbackBpe>(
        read_symbols(file, builder.spellings(), settings, pipeline.dummy_prefix, path),
        std::move(merges));
    parts.vocabulary = std::make_shared<const Vocabulary>(builder.byte_fallback());
    parts.dummy_prefix = pipeline.dummy_prefix;
    parts.kind = "BPE with byte fallback (tokenizer.json)";
  }

  if (pipeline.bos_id && !parts.vocabulary->has(*pipeline.bos_id)) {
    throw data_error("{}: post_processor: '{}' has id {}, which no token has", path.string(),
                     excerpt(*pipeline.bos_token), *pipeline.bos_id);
  }
  parts.adds_bos = pipeline.bos_id.has_value();
  parts.bos = pipeline.bos_id;
  apply_config(config, parts);
  // What the post-processor puts in front holds unless the configuration takes the matter over.
  if (pipeline.bos_id && !config.add_bos) parts.bos = pipeline.bos_id;
  return parts;
}

}  // namespace fut
