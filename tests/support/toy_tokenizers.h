// Tokenizer files for toy models, in the three kinds that Llama checkpoints come with. A vocabulary
// is a list of byte strings; each writer spells it in its own way. Independent of tokenizer/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fut::test {

// Pieces have the ids 0, 1, 2, ..., special tokens the ids after them.
struct ToyVocabulary {
  std::vector<std::string> pieces;                          // raw bytes
  std::vector<std::pair<std::string, std::string>> merges;  // raw bytes, most important first
  std::vector<std::string> specials;

  // The id of a special token or, failing that, of a piece; throws std::out_of_range for neither.
  [[nodiscard]] std::int32_t id(std::string_view bytes) const;
};

// The special tokens that toy models have, in the order of their ids.
[[nodiscard]] const std::vector<std::string>& toy_special_tokens();

// `size` tokens: the 256 bytes (id = value), pieces that grow out of the demonstration model's
// first merges, then toy_special_tokens().
[[nodiscard]] ToyVocabulary merged_vocabulary(int size);

// Byte-level BPE in Llama-3 style: its split pattern, ignore_merges, BOS put in front by the
// post-processor.
[[nodiscard]] nlohmann::json tokenizer_json(const ToyVocabulary& vocabulary);

// What tokenizer_config.json says of `vocabulary`: bos_token, eos_token (<|eot_id|>), the special
// tokens with their ids and, if asked for, the demonstration model's chat template.
[[nodiscard]] nlohmann::json tokenizer_config_json(const ToyVocabulary& vocabulary,
                                                   bool with_chat_template);

[[nodiscard]] std::string base64(std::string_view bytes);

// The Llama-3 rank table: a line for each piece, base64 of its bytes, a blank, its id.
[[nodiscard]] std::string rank_table(const ToyVocabulary& vocabulary);

// A SentencePiece BPE model in Llama-2 style: <unk>, <s>, </s>, the bytes <0x00> to <0xFF>, then
// `words`, then single printable characters, then pieces that grow out of the demonstration model's
// first merges; `size` ids in all. A blank in a word is the meta symbol U+2581. A word is always
// found whole wherever it stands in a text.
[[nodiscard]] std::string sentencepiece_model(int size, const std::vector<std::string>& words = {});
inline constexpr std::int32_t kSentencePieceBos = 1;
inline constexpr std::int32_t kSentencePieceEos = 2;
inline constexpr std::int32_t kSentencePieceFirstByte = 3;
inline constexpr std::int32_t kSentencePieceFirstWord = 3 + 256;

}  // namespace fut::test
