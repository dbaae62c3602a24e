// config.json and generation_config.json in every spelling that users hold. Never guessed: what a
// forward pass needs is in the file or has a documented default, else the load fails and names the
// key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kernels/numeric/rope_table.h"

namespace fut {

struct ModelConfig {
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int max_position_embeddings = 0;
  float rms_norm_eps = 0;
  RopeParams rope;
  bool tie_word_embeddings = false;
  std::optional<std::int32_t> bos_token_id;
  std::vector<std::int32_t> eos_token_ids;  // of config.json alone
  std::string torch_dtype;                  // as written, for inspect; empty when absent
  std::vector<std::string> notices;         // what a user should be told once on standard error
};

// Throws Data: file missing, not JSON (byte), wrong architecture (named), key missing or of the
// wrong type or out of range (key and value), biases or quantised weights asked for (not
// supported).
[[nodiscard]] ModelConfig load_model_config(const std::filesystem::path& folder);
// The same of a file of any name.
[[nodiscard]] ModelConfig load_model_config_file(const std::filesystem::path& file);

// What generation_config.json suggests; every field may be absent, and so may the file.
struct GenerationDefaults {
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<int> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::vector<std::int32_t> eos_token_ids;
};
[[nodiscard]] GenerationDefaults load_generation_defaults(const std::filesystem::path& folder);

}  // namespace fut
