// The small JSON files beside the weights. The first byte says which: C config.json, G
// generation_config.json, T tokenizer_config.json, S special_tokens_map.json; the rest is the file. What is
// accepted is within the limits that everything further down relies on.
#include <cmath>
#include <set>
#include <string>

#include "kernels/numeric/rope_table.h"
#include "loader/model_config.h"
#include "loader/packed_tensors.h"
#include "tests/fuzz/memory_folder.h"
#include "tokenizer/tokenizer_config.h"

namespace {

using namespace fut;

void check_ids(const std::vector<std::int32_t>& ids) {
  const std::set<std::int32_t> different(ids.begin(), ids.end());
  test::require(different.size() == ids.size(), "an end token given twice");
  test::require(ids.empty() || *different.begin() >= 0, "a negative end token");
  test::require(ids.size() <= 1024, "more end tokens than every step can look through");
}

// Every size of what such a model is packed to is a positive number of 64 bits.
void check_packed(const ModelConfig& config) {
  if (!test::accepted([&] { check_packable(config, 64); })) return;
  for (int i = 0; i < kNumPackedLayerTensors; ++i) {
    const auto which = static_cast<PackedLayerTensor>(i);
    const PackedTensor tensor = packed_layer_tensor(config, 64, config.num_layers - 1, which);
    test::require(tensor_bytes(tensor) > 0 && tensor_bytes(tensor) < std::uint64_t{1} << 48,
                  "a packed tensor of no possible size");
  }
}

void check_config(const ModelConfig& config) {
  test::require(config.hidden_size > 0 && config.hidden_size <= 65536, "hidden_size");
  test::require(config.intermediate_size > 0 && config.intermediate_size <= 1 << 20, "widths");
  test::require(config.num_layers > 0 && config.num_layers <= 1024, "layers");
  test::require(config.vocab_size > 0 && config.vocab_size <= 1 << 24, "vocab_size");
  test::require(config.max_position_embeddings > 0, "positions");
  test::require(config.num_kv_heads > 0 && config.num_q_heads % config.num_kv_heads == 0, "heads");
  test::require(config.head_dim > 0 && config.head_dim % 2 == 0 && config.head_dim <= 1024,
                "head_dim");
  test::require(config.rms_norm_eps > 0 && config.rms_norm_eps <= 1, "rms_norm_eps");
  test::require(!config.bos_token_id || *config.bos_token_id >= 0, "a negative bos_token_id");
  check_ids(config.eos_token_ids);
  for (const double frequency : rope_inverse_frequencies(config.rope, config.head_dim)) {
    test::require(std::isfinite(frequency) && frequency > 0 && frequency <= 1, "a RoPE frequency");
  }
  check_packed(config);
}

void check_generation(const GenerationDefaults& defaults) {
  test::require(!defaults.temperature || *defaults.temperature >= 0, "temperature");
  test::require(!defaults.top_k || *defaults.top_k >= -1, "top_k");
  test::require(!defaults.top_p || (*defaults.top_p > 0 && *defaults.top_p <= 1), "top_p");
  test::require(!defaults.min_p || (*defaults.min_p >= 0 && *defaults.min_p <= 1), "min_p");
  test::require(!defaults.repetition_penalty || *defaults.repetition_penalty > 0, "penalty");
  check_ids(defaults.eos_token_ids);
}

void check_tokenizer_config(const TokenizerConfig& config) {
  TokenId last = -1;
  for (const AddedToken& token : config.added_tokens) {
    test::require(token.id >= last, "added tokens out of order");
    test::require(!token.text.empty() && token.text.size() <= kLongestAddedToken, "a spelling");
    last = token.id;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view content = test::as_text(data + 1, size - 1);
  static test::MemoryFolder folder;
  static test::MemoryFolder token_folder;
  switch (data[0]) {
    case 'C':
      folder.put("config.json", content);
      test::accepted([&] { check_config(load_model_config(folder.path())); });
      break;
    case 'G':
      folder.put("generation_config.json", content);
      test::accepted([&] { check_generation(load_generation_defaults(folder.path())); });
      break;
    case 'T':
    case 'S':
      token_folder.put("tokenizer_config.json", data[0] == 'T' ? content : "{}");
      token_folder.put("special_tokens_map.json", data[0] == 'S' ? content : "{}");
      test::accepted([&] { check_tokenizer_config(read_tokenizer_config(token_folder.path())); });
      test::accepted([&] { static_cast<void>(read_config_chat_template(token_folder.path())); });
      break;
    default:
      break;
  }
  return 0;
}
