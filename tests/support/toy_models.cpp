// Weights and folders of the toy models. Random numbers come from a 64-bit Mersenne twister whose
// values the C++ standard fixes, so that every machine writes the same bytes.
#include "tests/support/toy_models.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <random>
#include <stdexcept>

#include "tests/support/temp_folder.h"

namespace fut::test {
namespace {

constexpr int kNumScriptedSpecials = 12;

using Values = std::vector<float>;

// Nearly normal: the sum of four uniform numbers, one from each 16 bits of a draw, scaled to the
// standard deviation that is asked for.
Values random_values(std::mt19937_64& random, std::int64_t count, double deviation,
                     double mean = 0) {
  Values values(static_cast<std::size_t>(count));
  for (float& value : values) {
    const std::uint64_t draw = random();
    const std::uint64_t sum =
        (draw & 0xFFFFU) + (draw >> 16 & 0xFFFFU) + (draw >> 32 & 0xFFFFU) + (draw >> 48);
    // Four uniform numbers in [0, 1) have mean 2 and variance 1/3.
    const double unit = (static_cast<double>(sum) / 65536.0 - 2.0) * std::sqrt(3.0);
    value = static_cast<float>(mean + deviation * unit);
  }
  return values;
}

// Adds tensors in the order in which Hugging Face writes them.
class WeightWriter {
 public:
  WeightWriter(const ToyModelOptions& shape, DType dtype) : shape_(shape), dtype_(dtype) {}

  void matrix(const std::string& name, std::int64_t rows, std::int64_t cols, const Values& values) {
    tensors_.push_back(make_tensor(name + ".weight", dtype_, {rows, cols}, values));
  }
  void vector(const std::string& name, const Values& values) {
    const auto count = static_cast<std::int64_t>(values.size());
    tensors_.push_back(make_tensor(name + ".weight", dtype_, {count}, values));
  }

  // One layer; `deviation(cols)` for the matrices that read the residual stream, `out_deviation`
  // for those that add to it, norm gains around 1.
  template <class Deviation, class OutDeviation>
  void layer(int index, std::mt19937_64& random, double norm_deviation, Deviation deviation,
             OutDeviation out_deviation) {
    const std::string prefix = fmt::format("model.layers.{}.", index);
    const std::int64_t hidden = shape_.hidden_size;
    const std::int64_t ffn = shape_.intermediate_size;
    const std::int64_t q = std::int64_t{shape_.num_q_heads} * shape_.head_dim;
    const std::int64_t kv = std::int64_t{shape_.num_kv_heads} * shape_.head_dim;
    const auto add = [&](const char* name, std::int64_t rows, std::int64_t cols, double sd) {
      matrix(prefix + name, rows, cols, random_values(random, rows * cols, sd));
    };
    vector(prefix + "input_layernorm", random_values(random, hidden, norm_deviation, 1));
    add("mlp.down_proj", hidden, ffn, out_deviation(ffn));
    add("mlp.gate_proj", ffn, hidden, deviation(hidden));
    add("mlp.up_proj", ffn, hidden, deviation(hidden));
    vector(prefix + "post_attention_layernorm", random_values(random, hidden, norm_deviation, 1));
    add("self_attn.k_proj", kv, hidden, deviation(hidden));
    add("self_attn.o_proj", hidden, q, out_deviation(q));
    add("self_attn.q_proj", q, hidden, deviation(hidden));
    add("self_attn.v_proj", kv, hidden, deviation(hidden));
  }

  [[nodiscard]] std::vector<NamedTensor> take() { return std::move(tensors_); }

 private:
  const ToyModelOptions& shape_;
  DType dtype_;
  std::vector<NamedTensor> tensors_;
};

// The end tokens and BOS of a folder's files.
struct ControlIds {
  std::int32_t bos = kSentencePieceBos;
  std::int32_t eos = kSentencePieceEos;
  std::vector<std::int32_t> all_eos{kSentencePieceEos};
};

ControlIds control_ids(const ToyVocabulary& vocabulary, ToyTokenizer tokenizer) {
  if (tokenizer == ToyTokenizer::SentencePiece) return {};
  const std::int32_t eos = vocabulary.id("<|end_of_text|>");
  return {vocabulary.id("<|begin_of_text|>"),
          eos,
          {eos, vocabulary.id("<|eom_id|>"), vocabulary.id("<|eot_id|>")}};
}

nlohmann::json config_json(const ToyModelOptions& options, const ControlIds& ids) {
  nlohmann::json config = {
      {"architectures", {"LlamaForCausalLM"}},
      {"attention_bias", false},
      {"bos_token_id", ids.bos},
      {"eos_token_id", ids.eos},
      {"head_dim", options.head_dim},
      {"hidden_act", "silu"},
      {"hidden_size", options.hidden_size},
      {"intermediate_size", options.intermediate_size},
      {"max_position_embeddings", options.files.max_position_embeddings},
      {"mlp_bias", false},
      {"model_type", "llama"},
      {"num_attention_heads", options.num_q_heads},
      {"num_hidden_layers", options.num_layers},
      {"num_key_value_heads", options.num_kv_heads},
      {"rms_norm_eps", 1e-5},
      {"rope_scaling", nullptr},
      {"rope_theta", 500000.0},
      {"vocab_size", options.vocab_size},
  };
  if (options.files.tie_word_embeddings) {
    config["tie_word_embeddings"] = *options.files.tie_word_embeddings;
  }
  config.merge_patch(options.files.config_patch);
  return config;
}

void write_json(const std::filesystem::path& path, nlohmann::json document,
                const nlohmann::json& patch) {
  document.merge_patch(patch);
  write_file(path, document.dump(2) + "\n");
}

void write_tokenizer(const std::filesystem::path& folder, const ToyFiles& files,
                     const ToyVocabulary& vocabulary, const std::string& sentencepiece) {
  const bool has_json =
      files.tokenizer == ToyTokenizer::Json || files.tokenizer == ToyTokenizer::JsonAndRanks;
  const bool has_ranks =
      files.tokenizer == ToyTokenizer::RankTable || files.tokenizer == ToyTokenizer::JsonAndRanks;
  if (has_json) write_file(folder / "tokenizer.json", tokenizer_json(vocabulary).dump());
  if (has_ranks) write_file(folder / "tokenizer.model", rank_table(vocabulary));
  nlohmann::json config = tokenizer_config_json(vocabulary, files.chat_template);
  if (files.tokenizer == ToyTokenizer::SentencePiece) {
    write_file(folder / "tokenizer.model", sentencepiece);
    config = {{"add_bos_token", true}, {"add_eos_token", false},
              {"bos_token", "<s>"},    {"eos_token", "</s>"},
              {"unk_token", "<unk>"},  {"tokenizer_class", "LlamaTokenizer"}};
  }
  if (files.add_bos_token) config["add_bos_token"] = *files.add_bos_token;
  write_json(folder / "tokenizer_config.json", config, files.tokenizer_config_patch);
}

void write_weights(const std::filesystem::path& folder, const ToyFiles& files,
                   const std::vector<NamedTensor>& tensors) {
  if (files.num_shards == 0) {
    write_safetensors(folder / "model.safetensors", tensors);
  } else {
    write_shards(folder, tensors, files.num_shards);
  }
}

std::filesystem::path write_folder(const std::filesystem::path& folder,
                                   const ToyModelOptions& options, const ToyVocabulary& vocabulary,
                                   const std::string& sentencepiece,
                                   const std::vector<NamedTensor>& tensors) {
  std::filesystem::create_directories(folder);
  const ControlIds ids = control_ids(vocabulary, options.files.tokenizer);
  write_json(folder / "config.json", config_json(options, ids), nlohmann::json::object());
  if (options.files.generation_config) {
    write_json(folder / "generation_config.json",
               {{"bos_token_id", ids.bos}, {"eos_token_id", ids.all_eos}},
               options.files.generation_patch);
  }
  write_tokenizer(folder, options.files, vocabulary, sentencepiece);
  write_weights(folder, options.files, tensors);
  return folder;
}

// The scripted model's shape in the terms of the random one.
ToyModelOptions scripted_shape(const ScriptedModel& model) {
  ToyModelOptions shape = large_toy_model();
  shape.intermediate_size = model.intermediate_size;
  shape.vocab_size = ScriptedModel::kVocabSize;
  shape.files = model.files;
  return shape;
}

}  // namespace

void set_json_key(const std::filesystem::path& file, const std::string& key, nlohmann::json value) {
  nlohmann::json document = nlohmann::json::parse(read_file(file));
  document[key] = std::move(value);
  write_file(file, document.dump(2) + "\n");
}

// ---- the random Llama ---------------------------------------------------------------------------

ToyModelOptions large_toy_model() {
  ToyModelOptions options;
  options.hidden_size = 512;
  options.head_dim = 128;
  options.intermediate_size = 1024;
  return options;
}

ToyModelOptions small_quantizable_model() {
  ToyModelOptions options;
  options.hidden_size = 128;
  options.num_q_heads = 2;
  options.num_kv_heads = 1;
  options.head_dim = 64;
  options.intermediate_size = 256;
  return options;
}

nlohmann::json toy_config(const ToyModelOptions& options) {
  return config_json(options,
                     control_ids(merged_vocabulary(options.vocab_size), options.files.tokenizer));
}

std::vector<NamedTensor> toy_tensors(const ToyModelOptions& options) {
  std::mt19937_64 random(options.seed);
  WeightWriter writer(options, options.files.dtype);
  const std::int64_t hidden = options.hidden_size;
  const std::int64_t vocab = options.vocab_size;
  // Sums over `cols` inputs of size 1 then have size 1; twice that for the head, so that the best
  // token leads clearly.
  const auto deviation = [](std::int64_t cols) {
    return 1.0 / std::sqrt(static_cast<double>(cols));
  };
  const Values head = random_values(random, vocab * hidden, 2 * deviation(hidden));
  const Values embedding = random_values(random, vocab * hidden, 1);
  if (options.files.write_head) writer.matrix("lm_head", vocab, hidden, head);
  if (options.files.write_embedding) {
    writer.matrix("model.embed_tokens", vocab, hidden, embedding);
  }
  for (int i = 0; i < options.num_layers; ++i) writer.layer(i, random, 0.1, deviation, deviation);
  writer.vector("model.norm", random_values(random, hidden, 0.1, 1));
  return writer.take();
}

std::filesystem::path write_toy_model(const std::filesystem::path& folder,
                                      const ToyModelOptions& options) {
  return write_folder(folder, options, merged_vocabulary(options.vocab_size),
                      sentencepiece_model(options.vocab_size), toy_tensors(options));
}

std::filesystem::path write_changed_toy_model(
    const std::filesystem::path& folder, const ToyModelOptions& options,
    const std::function<void(std::vector<NamedTensor>&)>& change) {
  write_toy_model(folder, options);
  std::vector<NamedTensor> tensors = toy_tensors(options);
  change(tensors);
  write_safetensors(folder / "model.safetensors", tensors);
  return folder;
}

NamedTensor& tensor_named(std::vector<NamedTensor>& tensors, std::string_view name) {
  const auto it = std::find_if(tensors.begin(), tensors.end(),
                               [&](const NamedTensor& tensor) { return tensor.name == name; });
  if (it == tensors.end()) throw std::out_of_range(fmt::format("no tensor {}", name));
  return *it;
}

NamedTensor zero_tensor(std::string name, std::vector<std::int64_t> shape) {
  std::size_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
  return make_tensor(std::move(name), DType::BF16, std::move(shape), Values(count));
}

// ---- the scripted model -------------------------------------------------------------------------

ScriptedModel::ScriptedModel(ToyTokenizer tokenizer) {
  files.tokenizer = tokenizer;
  if (tokenizer != ToyTokenizer::SentencePiece) words_.emplace_back("\n\n");
}

std::int32_t ScriptedModel::token(std::string_view bytes) {
  const bool sentencepiece = files.tokenizer == ToyTokenizer::SentencePiece;
  const std::int32_t first_byte = sentencepiece ? kSentencePieceFirstByte : 0;
  if (bytes.size() == 1) return first_byte + static_cast<unsigned char>(bytes.front());
  if (sentencepiece) {
    if (bytes == "<s>") return kSentencePieceBos;
    if (bytes == "</s>") return kSentencePieceEos;
  } else {
    const std::vector<std::string> specials = vocabulary().specials;
    const auto special = std::find(specials.begin(), specials.end(), bytes);
    if (special != specials.end()) return vocabulary().id(bytes);
  }
  const auto word = std::find(words_.begin(), words_.end(), bytes);
  const auto index = static_cast<std::int32_t>(word - words_.begin());
  if (word == words_.end()) {
    constexpr int kRoom = kVocabSize - kSentencePieceFirstWord - kNumScriptedSpecials;
    if (index == kRoom) throw std::length_error("no more room for words in the scripted model");
    words_.emplace_back(bytes);
  }
  return (sentencepiece ? kSentencePieceFirstWord : 256) + index;
}

void ScriptedModel::link(std::string_view from, std::string_view to, float weight) {
  links_.push_back({token(from), token(to), weight});
}

void ScriptedModel::say(std::string_view first, std::initializer_list<std::string_view> others) {
  std::string_view from = first;
  for (const std::string_view to : others) {
    const std::int32_t id = token(from);
    for (const Link& old : links_) {
      if (old.from == id && old.to != token(to)) {
        throw std::invalid_argument(
            fmt::format("'{}' would be followed by two tokens; one of them is '{}'", from, to));
      }
    }
    link(from, to);
    from = to;
  }
}

ToyVocabulary ScriptedModel::vocabulary() const {
  ToyVocabulary result;
  for (int byte = 0; byte < 256; ++byte) result.pieces.emplace_back(1, static_cast<char>(byte));
  result.pieces.insert(result.pieces.end(), words_.begin(), words_.end());
  for (int id = static_cast<int>(result.pieces.size()); id < kVocabSize - kNumScriptedSpecials;
       ++id) {
    result.pieces.push_back(fmt::format("[unused{}]", id));
  }
  result.specials = toy_special_tokens();
  while (result.specials.size() < kNumScriptedSpecials) {
    result.specials.push_back(fmt::format("<|spare_{}|>", result.specials.size()));
  }
  return result;
}

std::vector<NamedTensor> scripted_tensors(const ScriptedModel& model) {
  constexpr std::int64_t kSize = ScriptedModel::kVocabSize;
  const ToyModelOptions shape = scripted_shape(model);
  std::mt19937_64 random(model.seed);
  WeightWriter writer(shape, model.files.dtype);
  if (model.files.write_head) {
    Values head(kSize * kSize);
    for (const ScriptedModel::Link& link : model.links_) {
      head[static_cast<std::size_t>(link.to * kSize + link.from)] = link.weight;
    }
    writer.matrix("lm_head", kSize, kSize, head);
  }
  if (model.files.write_embedding) {
    Values embedding(kSize * kSize);
    for (std::size_t i = 0; i < kSize; ++i) embedding[i * kSize + i] = 1;
    writer.matrix("model.embed_tokens", kSize, kSize, embedding);
  }
  for (int i = 0; i < shape.num_layers; ++i) {
    writer.layer(
        i, random, 0, [](std::int64_t) { return 0.02; }, [](std::int64_t) { return 0.001; });
  }
  writer.vector("model.norm", Values(kSize, 1.0F));
  return writer.take();
}

std::filesystem::path write_scripted_model(const std::filesystem::path& folder,
                                           const ScriptedModel& model) {
  return write_folder(folder, scripted_shape(model), model.vocabulary(),
                      sentencepiece_model(ScriptedModel::kVocabSize, model.words_),
                      scripted_tensors(model));
}

}  // namespace fut::test
