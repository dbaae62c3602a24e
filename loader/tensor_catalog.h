// Every tensor of a checkpoint's files by name, each in exactly one file and, where there is an
// index, in the file that the index says. Knows nothing of models. Internal to loader/.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "loader/safetensors.h"
#include "loader/weight_files.h"

namespace fut {

struct CatalogEntry {
  const Safetensors* file = nullptr;
  const TensorInfo* info = nullptr;  // nullptr: of a type that cannot be computed with
  std::string_view dtype;            // as the file spells it
};

class TensorCatalog {
 public:
  // `files` are those of `weights.names`, in that order, and must outlive the catalogue. Throws
  // Data: a tensor in two files; tensors that are not in the file that the index names.
  TensorCatalog(const std::filesystem::path& folder, const WeightFiles& weights,
                const std::vector<Safetensors>& files);

  // nullptr: no file has it, or the index does not list it.
  [[nodiscard]] const CatalogEntry* find(std::string_view name) const;
  // What counts, in the order of names.
  [[nodiscard]] const std::map<std::string, CatalogEntry, std::less<>>& entries() const {
    return entries_;
  }
  // Tensors that lie in the files and that the index does not list; always empty without an index.
  [[nodiscard]] const std::map<std::string, CatalogEntry, std::less<>>& unlisted() const {
    return unlisted_;
  }

 private:
  void add_file(const Safetensors& file);
  void apply_index(const std::filesystem::path& folder, const WeightFiles& weights);

  std::map<std::string, CatalogEntry, std::less<>> entries_;
  std::map<std::string, CatalogEntry, std::less<>> unlisted_;
};

}  // namespace fut
