// The table and the lists; no file is touched here.
#include "loader/expected_tensors.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

namespace fut {
namespace {

// An extent of a shape in the words of config.json.
enum class Extent { None, Hidden, Intermediate, QueryHeads, KvHeads, Vocab };

struct TableRow {
  std::string_view name;
  Extent rows;
  Extent cols;
};

// In the order of LayerTensor; after "model.layers.N." and before ".weight".
constexpr std::array<TableRow, kNumLayerTensors> kLayerTable = {{
    {"input_layernorm", Extent::Hidden, Extent::None},
    {"self_attn.q_proj", Extent::QueryHeads, Extent::Hidden},
    {"self_attn.k_proj", Extent::KvHeads, Extent::Hidden},
    {"self_attn.v_proj", Extent::KvHeads, Extent::Hidden},
    {"self_attn.o_proj", Extent::Hidden, Extent::QueryHeads},
    {"post_attention_layernorm", Extent::Hidden, Extent::None},
    {"mlp.gate_proj", Extent::Intermediate, Extent::Hidden},
    {"mlp.up_proj", Extent::Intermediate, Extent::Hidden},
    {"mlp.down_proj", Extent::Hidden, Extent::Intermediate},
}};

// In the order of GlobalTensor.
constexpr std::array<TableRow, 3> kGlobalTable = {{
    {"model.embed_tokens", Extent::Vocab, Extent::Hidden},
    {"model.norm", Extent::Hidden, Extent::None},
    {"lm_head", Extent::Vocab, Extent::Hidden},
}};

std::int64_t extent_value(const ModelConfig& config, Extent extent) {
  switch (extent) {
    case Extent::Hidden:
      return config.hidden_size;
    case Extent::Intermediate:
      return config.intermediate_size;
    case Extent::QueryHeads:
      return std::int64_t{config.num_q_heads} * config.head_dim;
    case Extent::KvHeads:
      return std::int64_t{config.num_kv_heads} * config.head_dim;
    case Extent::Vocab:
      return config.vocab_size;
    case Extent::None:
      break;
  }
  return 0;
}

std::string extent_words(const ModelConfig& config, Extent extent) {
  switch (extent) {
    case Extent::Hidden:
      return fmt::format("hidden_size {}", config.hidden_size);
    case Extent::Intermediate:
      return fmt::format("intermediate_size {}", config.intermediate_size);
    case Extent::QueryHeads:
      return fmt::format("num_attention_heads {} x head_dim {}", config.num_q_heads,
                         config.head_dim);
    case Extent::KvHeads:
      return fmt::format("num_key_value_heads {} x head_dim {}", config.num_kv_heads,
                         config.head_dim);
    case Extent::Vocab:
      return fmt::format("vocab_size {} as the embedding has it", config.vocab_size);
    case Extent::None:
      break;
  }
  return {};
}

ExpectedTensor from_row(const ModelConfig& config, std::string_view prefix, const TableRow& row) {
  ExpectedTensor tensor;
  tensor.name = fmt::format("{}{}.weight", prefix, row.name);
  tensor.shape.push_back(extent_value(config, row.rows));
  tensor.decided_by = extent_words(config, row.rows);
  if (row.cols != Extent::None) {
    tensor.shape.push_back(extent_value(config, row.cols));
    tensor.decided_by += ", " + extent_words(config, row.cols);
  }
  return tensor;
}

template <std::size_t N>
bool ends_with_any(std::string_view name, const std::array<std::string_view, N>& endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

}  // namespace

ExpectedTensor expected_layer_tensor(const ModelConfig& config, int layer, LayerTensor which) {
  return from_row(config, fmt::format("model.layers.{}.", layer),
                  kLayerTable[static_cast<std::size_t>(which)]);
}

ExpectedTensor expected_global_tensor(const ModelConfig& config, GlobalTensor which) {
  return from_row(config, "", kGlobalTable[static_cast<std::size_t>(which)]);
}

std::vector<std::int64_t> checkpoint_shape(const ModelConfig& config, LayerTensor which) {
  return expected_layer_tensor(config, 0, which).shape;
}

std::vector<std::int64_t> checkpoint_shape(const ModelConfig& config, GlobalTensor which) {
  return expected_global_tensor(config, which).shape;
}

bool is_harmless_leftover(std::string_view name) {
  constexpr std::array<std::string_view, 5> kEndings = {
      "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached",
      "rotary_emb.original_inv_freq", "rope.freqs"};
  return ends_with_any(name, kEndings);
}

std::optional<std::string_view> unsupported_feature(std::string_view name) {
  // GPTQ and AWQ; compressed-tensors and FP8; bitsandbytes.
  constexpr std::array<std::string_view, 20> kQuantised = {".qweight",
                                                           ".qzeros",
                                                           ".scales",
                                                           ".g_idx",
                                                           ".weight_packed",
                                                           ".weight_scale",
                                                           ".weight_shape",
                                                           ".weight_zero_point",
                                                           ".weight_g_idx",
                                                           ".weight_scale_inv",
                                                           ".input_scale",
                                                           ".input_scale_ub",
                                                           ".k_scale",
                                                           ".v_scale",
                                                           ".weight.absmax",
                                                           ".weight.quant_map",
                                                           ".weight.nested_absmax",
                                                           ".weight.nested_quant_map",
                                                           ".SCB",
                                                           ".weight_format"};
  if (ends_with_any(name, kQuantised) || name.find(".weight.quant_state.") != name.npos) {
    return "the weights are quantised; get the unquantised model (BF16, F16 or F32 weights)";
  }
  if (name.find(".lora_A.") != name.npos || name.find(".lora_B.") != name.npos) {
    return "this is a LoRA adapter; merge it into its base model (peft: merge_and_unload) and save "
           "that";
  }
  if (name.ends_with(".bias")) return "models with bias vectors are not supported";
  return std::nullopt;
}

std::string_view naming_convention(std::string_view name) {
  if (name == "tok_embeddings.weight" || name.ends_with(".attention.wq.weight")) {
    return "the names are those of Meta's own files; get the Hugging Face files of the model";
  }
  if (name == "embed_tokens.weight" || name.starts_with("layers.")) {
    return "the names lack the prefix 'model.': the file was saved from the bare transformer; save "
           "it from LlamaForCausalLM";
  }
  return {};
}

}  // namespace fut
