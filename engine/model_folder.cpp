// Reads what a model folder says besides its weights.
#include "engine/model_folder.h"

#include <algorithm>

namespace fut {
namespace {

void add_end_id(ModelFolder& folder, TokenId id) {
  if (std::find(folder.end_ids.begin(), folder.end_ids.end(), id) == folder.end_ids.end()) {
    folder.end_ids.push_back(id);
  }
}

}  // namespace

ModelFolder read_model_folder(const std::filesystem::path& path) {
  ModelConfig config = load_model_config(path);
  GenerationDefaults generation = load_generation_defaults(path);
  ModelFolder folder{path, std::move(config), std::move(generation), Tokenizer::load(path), {}, {}};
  folder.notices = folder.config.notices;
  for (const TokenId id : folder.config.eos_token_ids) add_end_id(folder, id);
  for (const TokenId id : folder.generation.eos_token_ids) add_end_id(folder, id);
  if (const auto id = folder.tokenizer.eos_id()) add_end_id(folder, *id);
  std::sort(folder.end_ids.begin(), folder.end_ids.end());
  return folder;
}

}  // namespace fut
