// From what -m says to a folder on this machine. Looks, never downloads, never writes.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fut::app {

enum class Wanted {
  Model,     // config.json has to be there
  Tokenizer  // tokenizer.json or tokenizer.model has to be there
};

struct FoundFolder {
  std::filesystem::path path;
  std::vector<std::string> tried;  // "PLACE: what was missing", those before the hit
  std::string notice;              // something that the user should be told; may be empty
};

// The config.json of a model's shape that lies beside the program, by its name ("llama-3.1-8b"); empty:
// there is none of that name.
[[nodiscard]] std::filesystem::path find_preset(const std::string& name);

// Where hf download keeps models; nullopt: no variable says.
[[nodiscard]] std::optional<std::filesystem::path> hugging_face_cache();

// First hit wins: `argument` as a folder; as a .safetensors file in such a folder; as
// org/name[@revision] in the Hugging Face cache (HF_HUB_CACHE, else HF_HOME/hub, else
// HUGGINGFACE_HUB_CACHE, else XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub). An
// empty argument is the demonstration model beside the program. Throws Data that lists the places
// and what was missing in each, and what to type next; `flag` is where the argument comes from.
[[nodiscard]] FoundFolder find_model_folder(const std::string& argument, Wanted wanted,
                                            std::string_view flag = "-m");

// Whether a folder holds weights, or the list of some; it may have its config alone.
[[nodiscard]] bool has_weights(const std::filesystem::path& folder);

}  // namespace fut::app
