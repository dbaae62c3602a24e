// Collects all names first, then lets the index choose among them.
#include "loader/tensor_catalog.h"

#include "kernels/error.h"
#include "loader/describe.h"
#include "loader/expected_tensors.h"

namespace fut {

TensorCatalog::TensorCatalog(const std::filesystem::path& folder, const WeightFiles& weights,
                             const std::vector<Safetensors>& files) {
  for (const Safetensors& file : files) add_file(file);
  if (weights.has_index) apply_index(folder, weights);
}

void TensorCatalog::add_file(const Safetensors& file) {
  const auto add = [&](const std::string& name, const CatalogEntry& entry) {
    const auto [it, is_new] = entries_.emplace(name, entry);
    if (is_new) return;
    throw data_error("tensor {} is in two files, {} and {}; only one of them belongs here",
                     quote(name), it->second.file->path().string(), file.path().string());
  };
  for (const TensorInfo& info : file.tensors()) {
    add(info.name, {&file, info.dtype == DType::U8 ? nullptr : &info, dtype_name(info.dtype)});
  }
  for (const UnsupportedTensor& tensor : file.unsupported()) {
    add(tensor.name, {&file, nullptr, tensor.dtype});
  }
}

void TensorCatalog::apply_index(const std::filesystem::path& folder, const WeightFiles& weights) {
  std::vector<std::string> wrong;
  for (const auto& [name, file] : weights.weight_map) {
    const auto it = entries_.find(name);
    if (it == entries_.end()) {
      if (is_harmless_leftover(name)) continue;
      wrong.push_back(fmt::format("{} is not in {}", quote(name), file));
    } else if (it->second.file->path().filename() != file) {
      wrong.push_back(fmt::format("{} is in {}, not in {}", quote(name),
                                  it->second.file->path().filename().string(), file));
    }
  }
  if (!wrong.empty()) {
    throw data_error(
        "{}: {} tensors are not where {} says: {}; files of two downloads or models "
        "are mixed, download all of them again",
        folder.string(), wrong.size(), kIndexName, first_few(wrong));
  }
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto next = std::next(it);
    if (!weights.weight_map.contains(it->first)) unlisted_.insert(entries_.extract(it));
    it = next;
  }
}

const CatalogEntry* TensorCatalog::find(std::string_view name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

}  // namespace fut
