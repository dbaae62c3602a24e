// config.json to ModelConfig. Every size has an upper bound, so that no product of two of them
// leaves 64 bits further down.
#include "loader/model_config.h"

#include <limits>
#include <system_error>

#include "kernels/error.h"
#include "loader/describe.h"
#include "loader/json_file.h"
#include "loader/rope_config.h"

namespace fut {
namespace {

constexpr int kMaxHiddenSize = 65536;
constexpr int kMaxIntermediateSize = 1 << 20;
constexpr int kMaxLayers = 1024;
constexpr int kMaxHeads = 1024;
constexpr int kMaxHeadDim = 1024;
constexpr int kMaxVocabSize = 1 << 24;
constexpr int kMaxPositions = 1 << 24;

constexpr std::string_view kOnlyLlama = "only LlamaForCausalLM models can be run";

void check_folder(const std::filesystem::path& folder) {
  std::error_code error;
  const auto status = std::filesystem::status(folder, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    throw data_error("{}: no such folder", folder.string());
  }
  if (!std::filesystem::exists(status)) {
    throw data_error("{}: cannot be looked at: {}", folder.string(), error.message());
  }
  if (!std::filesystem::is_directory(status)) {
    throw data_error(
        "{}: is not a folder; a model is a folder with config.json, weights and "
        "tokenizer files",
        folder.string());
  }
  const auto config = std::filesystem::symlink_status(folder / "config.json", error);
  if (std::filesystem::exists(config)) return;
  if (std::filesystem::exists(folder / "params.json", error)) {
    throw data_error(
        "{}: has params.json and no config.json: this is Meta's own layout; get the "
        "Hugging Face files of the model",
        folder.string());
  }
  throw data_error(
      "{}: has no config.json; a model folder holds config.json, "
      "model.safetensors (or its shards and index) and tokenizer files",
      folder.string());
}

void check_architecture(const std::filesystem::path& file, const JsonObject& config) {
  const nlohmann::json* architectures = config.find("architectures");
  const std::optional<std::string> model_type = config.string("model_type");
  if (model_type && *model_type != "llama") {
    throw data_error("{}: model_type is {}; {}", file.string(), quote(*model_type), kOnlyLlama);
  }
  if (architectures == nullptr) {
    if (!model_type) {
      throw data_error("{}: has neither architectures nor model_type; {}", file.string(),
                       kOnlyLlama);
    }
    return;
  }
  if (!architectures->is_array()) config.fail("architectures", "a list of names");
  for (const nlohmann::json& name : *architectures) {
    if (name == "LlamaForCausalLM") return;
  }
  throw data_error("{}: architectures is {}; {}", file.string(), quote(architectures->dump()),
                   kOnlyLlama);
}

// What this program would have to ignore to go on.
void check_unsupported(const std::filesystem::path& file, const JsonObject& config) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (config.boolean(key).value_or(false)) {
      config.fail(key, "false: models with bias vectors are not supported");
    }
  }
  const std::string activation = config.string("hidden_act").value_or("silu");
  if (activation != "silu") config.fail("hidden_act", "silu");
  if (config.number("partial_rotary_factor", 0, 1).value_or(1) != 1) {
    config.fail("partial_rotary_factor", "1");
  }
  for (const char* key : {"quantization_config", "compression_config"}) {
    const std::optional<JsonObject> block = config.object(key);
    if (!block) continue;
    const nlohmann::json* method = block->find("quant_method");
    throw data_error(
        "{}: {} says that the weights are quantised ({}); get the unquantised model "
        "(BF16, F16 or F32 weights)",
        file.string(), key, method == nullptr ? "no quant_method" : quote(method->dump()));
  }
}

void read_sizes(const JsonObject& config, ModelConfig& model) {
  model.hidden_size = config.required_integer("hidden_size", 1, kMaxHiddenSize);
  model.intermediate_size = config.required_integer("intermediate_size", 1, kMaxIntermediateSize);
  model.num_layers = config.required_integer("num_hidden_layers", 1, kMaxLayers);
  model.vocab_size = config.required_integer("vocab_size", 1, kMaxVocabSize);
  model.max_position_embeddings =
      config.required_integer("max_position_embeddings", 1, kMaxPositions);
  model.rms_norm_eps = static_cast<float>(
      config.required_number("rms_norm_eps", std::numeric_limits<float>::min(), 1));
}

void read_heads(const JsonObject& config, ModelConfig& model) {
  model.num_q_heads = config.required_integer("num_attention_heads", 1, kMaxHeads);
  model.num_kv_heads = static_cast<int>(
      config.integer("num_key_value_heads", 1, kMaxHeads).value_or(model.num_q_heads));
  if (model.num_q_heads % model.num_kv_heads != 0) {
    config.fail("num_key_value_heads",
                fmt::format("a divisor of num_attention_heads, which is {}", model.num_q_heads));
  }
  const std::optional<std::int64_t> head_dim = config.integer("head_dim", 1, kMaxHeadDim);
  if (!head_dim && model.hidden_size % model.num_q_heads != 0) {
    config.fail("num_attention_heads",
                fmt::format("a divisor of hidden_size, which is {}, where head_dim is not given",
                            model.hidden_size));
  }
  model.head_dim = static_cast<int>(head_dim.value_or(model.hidden_size / model.num_q_heads));
  if (model.head_dim % 2 != 0 || model.head_dim > kMaxHeadDim) {
    const std::string wanted = fmt::format("even and at most {} for rotary embedding", kMaxHeadDim);
    if (head_dim) config.fail("head_dim", wanted);
    config.fail("num_attention_heads",
                fmt::format("such that hidden_size / num_attention_heads, which is {}, is {}",
                            model.head_dim, wanted));
  }
}

}  // namespace

ModelConfig load_model_config(const std::filesystem::path& folder) {
  check_folder(folder);
  return load_model_config_file(folder / "config.json");
}

ModelConfig load_model_config_file(const std::filesystem::path& file) {
  const nlohmann::json document = read_json_file(file);
  const JsonObject config(file, document);
  check_architecture(file, config);
  check_unsupported(file, config);

  ModelConfig model;
  read_sizes(config, model);
  read_heads(config, model);
  model.rope = read_rope_params(config, model.notices);
  model.tie_word_embeddings = config.boolean("tie_word_embeddings").value_or(false);
  constexpr std::int64_t kMaxTokenId = std::numeric_limits<std::int32_t>::max();
  if (const auto bos = config.integer("bos_token_id", 0, kMaxTokenId)) {
    model.bos_token_id = static_cast<std::int32_t>(*bos);
  }
  model.eos_token_ids = config.token_ids("eos_token_id");
  model.torch_dtype = config.string("torch_dtype").value_or(config.string("dtype").value_or(""));
  return model;
}

}  // namespace fut
