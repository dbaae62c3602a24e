// Everything that a model folder says besides its weights: read once, by every command.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "loader/model_config.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace fut {

struct ModelFolder {
  std::filesystem::path path;
  ModelConfig config;
  GenerationDefaults generation;
  Tokenizer tokenizer;
  // All ids that end a reply: those of config.json, generation_config.json and
  // tokenizer_config.json.
  std::vector<TokenId> end_ids;
  std::vector<std::string> notices;
};

// Throws Data as the parts do. End ids are not held against the vocabulary here: its true size is
// known when the weights are found, and Engine::submit checks it.
[[nodiscard]] ModelFolder read_model_folder(const std::filesystem::path& path);

}  // namespace fut
