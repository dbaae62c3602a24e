// Small model folders for tests, written with fixed seeds: a random Llama, and a model that says
// what a script tells it to. Every part of a folder can be left out or changed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/toy_tokenizers.h"

namespace fut::test {

enum class ToyTokenizer {
  Json,           // tokenizer.json, byte-level BPE in Llama-3 style
  RankTable,      // tokenizer.model, base64 and rank
  JsonAndRanks,   // both of them
  SentencePiece,  // tokenizer.model, Llama-2 style
  None
};

// What both kinds of model let a test choose about the folder.
struct ToyFiles {
  DType dtype = DType::BF16;
  int num_shards = 0;                              // 0: model.safetensors alone, no index
  std::optional<bool> tie_word_embeddings{false};  // nullopt: the key is left out
  bool write_head = true;                          // lm_head.weight
  bool write_embedding = true;                     // model.embed_tokens.weight
  int max_position_embeddings = 1024;
  ToyTokenizer tokenizer = ToyTokenizer::Json;
  std::optional<bool> add_bos_token;  // of tokenizer_config.json; nullopt: no such key
  bool chat_template = true;          // the demonstration model's, in tokenizer_config.json
  bool generation_config = true;      // greedy; end tokens <|end_of_text|>, <|eom_id|>, <|eot_id|>
  // Merge patches (RFC 7386: null removes a key; see set_json_key) over what would be written.
  nlohmann::json config_patch = nlohmann::json::object();
  nlohmann::json generation_patch = nlohmann::json::object();
  nlohmann::json tokenizer_config_patch = nlohmann::json::object();
};

// Sets one key of a JSON file that was written; unlike a merge patch it can set null.
void set_json_key(const std::filesystem::path& file, const std::string& key, nlohmann::json value);

// ---- the random Llama ---------------------------------------------------------------------------

// Its vocabulary is merged_vocabulary(vocab_size): id = value for the 256 bytes. With SentencePiece
// it is sentencepiece_model(vocab_size).
struct ToyModelOptions {
  int hidden_size = 64;
  int num_layers = 2;
  int num_q_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 16;
  int intermediate_size = 128;
  int vocab_size = 512;
  std::uint64_t seed = 1;
  ToyFiles files;
};
[[nodiscard]] ToyModelOptions large_toy_model();  // hidden 512, heads of 128, intermediate 1024
// Two layers, two heads of 64 that share keys and values: the least that can be quantised.
[[nodiscard]] ToyModelOptions small_quantizable_model();

// Fills `folder`, which is created where it is missing, and returns it.
std::filesystem::path write_toy_model(const std::filesystem::path& folder,
                                      const ToyModelOptions& options = {});

// The parts, for tests that write a broken or an unusual folder.
[[nodiscard]] nlohmann::json toy_config(const ToyModelOptions& options);
[[nodiscard]] std::vector<NamedTensor> toy_tensors(const ToyModelOptions& options);

// The toy model in one file, its list of tensors changed first. Returns the folder.
std::filesystem::path write_changed_toy_model(
    const std::filesystem::path& folder, const ToyModelOptions& options,
    const std::function<void(std::vector<NamedTensor>&)>& change);

// The tensor of that name in a list; throws std::out_of_range where there is none.
[[nodiscard]] NamedTensor& tensor_named(std::vector<NamedTensor>& tensors, std::string_view name);

// A BF16 tensor of zeros.
[[nodiscard]] NamedTensor zero_tensor(std::string name, std::vector<std::int64_t> shape);

// ---- the scripted model -------------------------------------------------------------------------

// Hidden size and vocabulary 512, the embedding the unit matrix, so that the last token alone
// decides what follows: the token that its column of the head points at, with a lead of about 20
// logits for weight 1. Two links of weight 1 from one token are a tie; 1 and 0.95 a coin with odds
// of about 3 to 1. A token without a link has no clear follower.
//
// Ids with tokenizer.json: the bytes 0 to 255 by value; words from 256 on, "\n\n" first; the last
// twelve are special tokens: toy_special_tokens(), then spares. With SentencePiece: 0 to 2 <unk>,
// <s>, </s>; bytes from 3 on; words (a blank is part of a word, "\n\n" is none) from 259 on; there
// are no other special tokens.
class ScriptedModel {
 public:
  static constexpr int kVocabSize = 512;

  explicit ScriptedModel(ToyTokenizer tokenizer = ToyTokenizer::Json);

  // The id of a special token spelt out, of a single byte or of a word; a word is added when new.
  // Any bytes can be a word. A text becomes the word's id where the split pattern makes it one
  // piece, e.g. "Hello", " world", "\n\n". Throws std::length_error when there is no more room.
  std::int32_t token(std::string_view bytes);

  // After `first` come the others in their order. Throws std::invalid_argument where a token would
  // be followed by two: a token can stand only once in a script (cut the text elsewhere).
  void say(std::string_view first, std::initializer_list<std::string_view> others);
  // A link with a weight of its own; several from one token are allowed.
  void link(std::string_view from, std::string_view to, float weight = 1.0F);

  ToyFiles files;
  std::uint64_t seed = 1;
  int intermediate_size = 512;

 private:
  friend std::filesystem::path write_scripted_model(const std::filesystem::path& folder,
                                                    const ScriptedModel& model);
  friend std::vector<NamedTensor> scripted_tensors(const ScriptedModel& model);
  struct Link {
    std::int32_t from;
    std::int32_t to;
    float weight;
  };

  [[nodiscard]] ToyVocabulary vocabulary() const;

  std::vector<std::string> words_;
  std::vector<Link> links_;
};

// Fills `folder`, which is created where it is missing, and returns it.
std::filesystem::path write_scripted_model(const std::filesystem::path& folder,
                                           const ScriptedModel& model);
[[nodiscard]] std::vector<NamedTensor> scripted_tensors(const ScriptedModel& model);

}  // namespace fut::test
