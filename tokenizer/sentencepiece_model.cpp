// Llama 2's tokenizer.model: encoding by libsentencepiece, everything else (which tokens there are,
// what bytes they stand for, which are special) from the file itself. See tokenizer_files.h.
#include <array>
#include <sentencepiece_processor.h>
#include <utility>

#include "kernels/error.h"
#include "tokenizer/byte_fallback_bpe.h"
#include "tokenizer/data_file.h"
#include "tokenizer/sentencepiece_file.h"
#include "tokenizer/tokenizer_files.h"
#include "tokenizer/utf8.h"

namespace fut {
namespace {

using Type = SentencePieceFile::Type;

class SentencePieceEncoder final : public TextEncoder {
 public:
  using Library = std::unique_ptr<sentencepiece::SentencePieceProcessor>;

  // `byte_ids`: the fallback bytes, -1 for those without a token.
  SentencePieceEncoder(Library library, bool cuts_at_blanks,
                       std::shared_ptr<const Vocabulary> vocabulary,
                       const std::array<TokenId, 256>& byte_ids)
      : library_(std::move(library)),
        cuts_at_blanks_(cuts_at_blanks),
        vocabulary_(std::move(vocabulary)),
        byte_ids_(byte_ids) {}

  void encode(std::string_view text, std::vector<TokenId>& ids) const override {
    if (utf8::valid_run(text, 0) == text.size()) {
      encode_valid(text, ids);
    } else {
      encode_with_stray_bytes(text, ids);
    }
  }

 private:
  // In parts where that gives the same tokens: the library's work on a megabyte at once leaves the
  // caches and takes four times as long.
  void encode_valid(std::string_view text, std::vector<TokenId>& ids) const {
    constexpr std::size_t kPart = 1024;
    std::size_t begin = 0;
    while (begin < text.size()) {
      std::size_t end = text.size();
      if (cuts_at_blanks_ && end - begin > kPart) end = next_cut(text, begin + kPart);
      // The blank in front of a later part is the one that the library puts there itself.
      const std::string_view part = text.substr(begin, end - begin).substr(begin > 0 ? 1 : 0);
      std::vector<int> found;
      if (!library_->Encode({part.data(), part.size()}, &found).ok()) {
        throw runtime_failure("a text of {} bytes cannot be tokenized by the SentencePiece library",
                              part.size());
      }
      ids.insert(ids.end(), found.begin(), found.end());
      begin = end;
    }
  }

  // The first blank at or after `from` that follows something else and has something behind it.
  [[nodiscard]] static std::size_t next_cut(std::string_view text, std::size_t from) {
    for (std::size_t pos = from; pos + 1 < text.size(); ++pos) {
      if (text[pos] != ' ' || text[pos - 1] == ' ') continue;
      if (!text.substr(0, pos).ends_with(kBlankMark)) return pos;
    }
    return text.size();
  }

  // The library would turn bytes that are not UTF-8 into U+FFFD. So a character that occurs nowhere
  // else stands in for each run of them; it comes back as its own fallback bytes, and these are
  // replaced by those of the run. UTF-8 cannot be mistaken for another character's, wherever it is.
  void encode_with_stray_bytes(std::string_view text, std::vector<TokenId>& ids) const {
    const std::string stand_in = unused_character(text);
    std::string valid;
    std::vector<std::string_view> runs;
    for (std::size_t pos = 0; pos < text.size();) {
      const std::size_t good = utf8::valid_run(text, pos);
      valid.append(text.substr(pos, good));
      pos += good;
      const std::size_t stray = utf8::invalid_run(text, pos);
      if (stray == 0) continue;
      valid.append(stand_in);
      runs.push_back(text.substr(pos, stray));
      pos += stray;
    }
    std::vector<TokenId> found;
    encode_valid(valid, found);
    auto run = runs.begin();
    for (std::size_t i = 0; i < found.size();) {
      if (run == runs.end() || !spells(found, i, stand_in)) {
        ids.push_back(found[i++]);
        continue;
      }
      for (const char byte : *run) ids.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
      ++run;
      i += stand_in.size();
    }
  }

  // Whether the tokens from `at` on are the fallback bytes of `bytes`.
  [[nodiscard]] bool spells(const std::vector<TokenId>& ids, std::size_t at,
                            std::string_view bytes) const {
    if (at + bytes.size() > ids.size()) return false;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const TokenId id = byte_ids_[static_cast<unsigned char>(bytes[i])];
      if (id < 0 || ids[at + i] != id) return false;
    }
    return true;
  }

  // A private-use character that neither the text nor the vocabulary has.
  [[nodiscard]] std::string unused_character(std::string_view text) const {
    constexpr char32_t kFirst = 0xF0000;  // Supplementary Private Use Area A, four bytes each
    constexpr std::size_t kCount = 65534;
    constexpr std::size_t kBytes = 4;
    std::vector<bool> used(kCount, false);
    for (std::size_t pos = 0; pos + kBytes <= text.size(); ++pos) {
      if (static_cast<unsigned char>(text[pos]) != 0xF3) continue;  // U+C0000 to U+FFFFF
      char32_t c = 0x3;
      for (std::size_t i = 1; i < kBytes; ++i) {
        c = c << 6 | (static_cast<unsigned char>(text[pos + i]) & 0x3FU);
      }
      if (c >= kFirst && c - kFirst < kCount) used[c - kFirst] = true;
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      std::string bytes;
      utf8::append(bytes, kFirst + static_cast<char32_t>(i));
      if (!used[i] && vocabulary_->find(bytes) < 0) return bytes;
    }
    throw data_error(
        "the text has bytes that are not UTF-8 and uses all {} private-use characters; "
        "make it valid UTF-8 first",
        kCount);
  }

  Library library_;
  bool cuts_at_blanks_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::array<TokenId, 256> byte_ids_;
};

Error damaged(const std::filesystem::path& path, std::string_view bytes) {
  return data_error(
      "{}: is neither a SentencePiece model nor a Llama-3 rank table, or it is damaged ({} bytes)"
      "{}; get the file again",
      path.string(), bytes.size(), content_hint(bytes));
}

// Special tokens of the file, then those that tokenizer_config.json adds behind its end. The
// configuration may say more about a token of the file, but not spell it otherwise.
std::vector<AddedToken> special_tokens(const SentencePieceFile& file, const TokenizerConfig& config,
                                       const std::filesystem::path& path) {
  std::vector<AddedToken> tokens = config.added_tokens;
  std::vector<bool> configured(file.pieces.size());
  for (const AddedToken& token : tokens) {
    const auto id = static_cast<std::size_t>(token.id);
    if (id >= file.pieces.size()) continue;
    configured[id] = true;
    if (token.text == file.pieces[id].text) continue;
    throw data_error("{}: token {} is '{}' here and '{}' in {}; the files do not belong together",
                     config.path.string(), token.id, excerpt(token.text),
                     excerpt(file.pieces[id].text), path.string());
  }
  for (std::size_t id = 0; id < file.pieces.size(); ++id) {
    const auto& [text, type] = file.pieces[id];
    if (type != Type::Control && type != Type::Unknown) continue;
    if (configured[id] || text.size() > kLongestAddedToken) continue;
    AddedToken token;
    token.id = static_cast<TokenId>(id);
    token.text = text;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

struct Tokens {
  Vocabulary vocabulary;
  std::array<TokenId, 256> byte_ids{};
};

// Ordinary pieces go into the index first, so that <0x41> is found by "A" only if nothing else is.
Tokens read_tokens(const SentencePieceFile& file, std::span<const AddedToken> added,
                   const std::filesystem::path& path) {
  Tokens tokens;
  tokens.byte_ids.fill(-1);
  Vocabulary& vocabulary = tokens.vocabulary;
  add_added_tokens(added, file.pieces.size() + added.size(), vocabulary, path);
  vocabulary.reserve_index(file.pieces.size(), path);
  for (const bool bytes_now : {false, true}) {
    for (std::size_t i = 0; i < file.pieces.size(); ++i) {
      const auto& [text, type] = file.pieces[i];
      const auto id = static_cast<TokenId>(i);
      const int byte = type == Type::Byte ? fallback_byte(text) : -1;
      if ((byte >= 0) != bytes_now) continue;
      const bool special = type == Type::Control || type == Type::Unknown;
      std::string bytes = special ? std::string(text) : unmark_blanks(text);
      if (byte >= 0) {
        bytes = std::string(1, static_cast<char>(byte));
        tokens.byte_ids[static_cast<std::size_t>(byte)] = id;
      }
      const bool ordinary = vocabulary.set(id, std::move(bytes));
      if (special) vocabulary.mark_special(id);
      if (ordinary && !special) static_cast<void>(vocabulary.index(id));
    }
  }
  return tokens;
}

std::optional<TokenId> valid_id(int id) {
  return id >= 0 ? std::optional(id) : std::nullopt;
}

}  // namespace

TokenizerParts read_sentencepiece(std::string_view bytes, const std::filesystem::path& path,
                                  const TokenizerConfig& config) {
  const auto file = parse_sentencepiece_file(bytes);
  if (!file) throw damaged(path, bytes);
  if (!file->refusal.empty()) {
    throw data_error("{}: a SentencePiece model with {}; get the file again", path.string(),
                     file->refusal);
  }
  auto library = std::make_unique<sentencepiece::SentencePieceProcessor>();
  // The library's own words speak of its sources and of protobuf; they help nobody here.
  if (!library->LoadFromSerializedProto({bytes.data(), bytes.size()}).ok()) {
    throw data_error(
        "{}: a SentencePiece model of {} tokens that contradicts itself (no unknown token, a token "
        "given twice, or a byte missing); get the file again",
        path.string(), file->pieces.size());
  }

  TokenizerParts parts;
  parts.source = path;
  parts.kind = "SentencePiece (tokenizer.model)";
  parts.dummy_prefix = file->dummy_prefix;
  parts.bos = valid_id(library->bos_id());
  parts.eos = valid_id(library->eos_id());
  parts.adds_bos = true;
  parts.added_tokens = special_tokens(*file, config, path);
  Tokens tokens = read_tokens(*file, parts.added_tokens, path);
  const auto vocabulary = std::make_shared<const Vocabulary>(std::move(tokens.vocabulary));
  parts.vocabulary = vocabulary;
  parts.encoder = std::make_unique<SentencePieceEncoder>(std::move(library), file->cuts_at_blanks,
                                                         vocabulary, tokens.byte_ids);
  apply_config(config, parts);
  return parts;
}

}  // namespace fut
