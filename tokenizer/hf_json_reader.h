// tokenizer.json as it lies in the file: the two long lists (vocabulary and merges) read in one
// pass without a tree, everything else as a tree. Says nothing of what it means.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fut {

struct HfTokenizerJson {
  std::vector<std::pair<std::string, std::int64_t>> vocabulary;  // model.vocab, where an object
  std::vector<std::pair<std::string, std::string>> merges;       // model.merges, both spellings
  nlohmann::json rest;                                           // the file without those two
};

// Throws Data: not JSON (file and byte), a vocabulary or merge entry of the wrong form.
[[nodiscard]] HfTokenizerJson read_hf_tokenizer_json(std::string_view text,
                                                     const std::filesystem::path& path);

}  // namespace fut
