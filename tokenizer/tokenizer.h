// Text to token ids and back, for the three kinds of tokenizer file that Llama checkpoints come
// with:
//   tokenizer.json   Hugging Face BPE: byte-level (Llama 3) or with byte fallback (Llama-2 style)
//   tokenizer.model  Llama-3 rank table: one base64 token and its rank a line
//   tokenizer.model  SentencePiece protobuf (Llama 2)
// The kind is told by what a file contains, never by its name. Knows nothing of models or devices.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fut {

using TokenId = std::int32_t;

class TokenizerImpl;

struct EncodeOptions {
  // A BOS in front, but only where the files ask for one (add_bos_token, the post-processor).
  bool add_bos = true;
  // Special tokens spelt out in the text become their ids. Words that were added to the vocabulary
  // without being special are found either way.
  bool parse_special = true;
};

class Tokenizer {
 public:
  // Reads tokenizer.json, else tokenizer.model; beside it tokenizer_config.json and
  // special_tokens_map.json where they are there. Throws ErrorKind::Data: neither file there (both
  // names given), damaged (file and line or byte), a type or setting that is not supported (named).
  static Tokenizer load(const std::filesystem::path& folder);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // `text` may hold any bytes; bytes that are not UTF-8 are encoded as bytes.
  // With add_bos, exactly one BOS: none is put in front of a text that already starts with one.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text, EncodeOptions options) const;

  // The pieces that the split pattern makes of `text`, before merging; joined they are the text.
  // A special token (with `parse_special`) or an added word is one piece. Kinds without a split
  // pattern give whole stretches.
  [[nodiscard]] std::vector<std::string> split(std::string_view text,
                                               bool parse_special = true) const;

  // The bytes that `id` adds to a text. A special token gives its own spelling. Throws Data for an
  // id outside the vocabulary.
  [[nodiscard]] std::string piece(TokenId id) const;

  // The whole text of `ids`: pieces joined, special tokens left out unless `show_special`, and the
  // one dummy space that SentencePiece-style encoders put before a text dropped from its start.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, bool show_special = false) const;

  [[nodiscard]] int vocab_size() const;  // largest id + 1, added tokens included
  [[nodiscard]] bool is_special(TokenId id) const;
  // The token that is spelt or stands for just these bytes: "<|eot_id|>", " the".
  [[nodiscard]] std::optional<TokenId> find(std::string_view token) const;
  [[nodiscard]] std::optional<TokenId> bos_id() const;
  // The eos_token of the configuration, else the file's own.
  [[nodiscard]] std::optional<TokenId> eos_id() const;
  [[nodiscard]] bool adds_bos() const;          // what add_bos does to a plain text
  [[nodiscard]] bool has_dummy_prefix() const;  // encoders of this kind put a space before a text
  [[nodiscard]] std::string_view kind() const;  // "byte-level BPE (tokenizer.json)", for inspect
  [[nodiscard]] const std::filesystem::path& source() const;  // the file that was read

 private:
  explicit Tokenizer(std::unique_ptr<TokenizerImpl> impl);
  std::unique_ptr<TokenizerImpl> impl_;
};

}  // namespace fut
