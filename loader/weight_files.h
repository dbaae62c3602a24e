// Which files of a folder hold its weights: what model.safetensors.index.json lists, else
// model.safetensors, else the only safetensors file there is. Opens none of them. Internal to
// loader/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fut {

inline constexpr char kIndexName[] = "model.safetensors.index.json";

struct WeightFiles {
  std::vector<std::string> names;                 // files in the folder, sorted
  bool has_index = false;                         // with an index, weight_map says what counts
  std::map<std::string, std::string> weight_map;  // tensor -> file
  std::optional<double> total_size;               // bytes of all tensors, as the index has it
};

// Throws Data: an index that is damaged, empty or names a path outside the folder; files that the
// index names and the folder lacks (first few and a count); no or several candidates without an
// index; weights in another format (named, with the way out).
[[nodiscard]] WeightFiles find_weight_files(const std::filesystem::path& folder,
                                            std::vector<std::string>& notices);

}  // namespace fut
