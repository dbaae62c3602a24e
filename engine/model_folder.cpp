// Reads what a model folder says besides its weights.
#include "engine/model_folder.h"

#include <algorithm>

#include "kernels/error.h"

namespace fut {
namespace {

void add_end_id(ModelFolder& folder, TokenId id, const char* file) {
  const int vocab_size = folder.config.vocab_size;
  if (id < 0 || id >= vocab_size) {
    throw data_error(
        "{}: eos token id {} is outside the vocabulary of {} ids: the file does not belong to "
        "this model, or vocab_size in config.json is wrong",
        (folder.path / file).string(), id, vocab_size);
  }
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
  for (const TokenId id : folder.config.eos_token_ids) add_end_id(folder, id, "config.json");
  for (const TokenId id : folder.generation.eos_token_ids) {
    add_end_id(folder, id, "generation_config.json");
  }
  if (const auto id = folder.tokenizer.eos_id()) add_end_id(folder, *id, "tokenizer_config.json");
  std::sort(folder.end_ids.begin(), folder.end_ids.end());
  return folder;
}

}  // namespace fut
