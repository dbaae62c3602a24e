// Reads the index or looks through the folder.
#include "loader/weight_files.h"

#include <algorithm>
#include <array>
#include <set>
#include <system_error>

#include "kernels/error.h"
#include "loader/describe.h"
#include "loader/json_file.h"
#include "loader/safetensors.h"

namespace fut {
namespace {

bool is_there(const std::filesystem::path& path) {  // a dangling link is there, too
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(path, error));
}

// Whether `name` can only mean a file that lies in the folder itself.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

// What is wrong with the file a shard's name leads to; empty when nothing is.
std::string shard_problem(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::is_regular_file(status)) return {};
  if (std::filesystem::is_directory(status)) return "a folder";
  if (std::filesystem::is_symlink(std::filesystem::symlink_status(path, error))) {
    return "a link to nothing";
  }
  return std::filesystem::exists(status) ? "not a regular file" : "missing";
}

void check_shards(const std::filesystem::path& folder, const std::vector<std::string>& names) {
  std::vector<std::string> bad;
  for (const std::string& name : names) {
    const std::string problem = shard_problem(folder / name);
    if (!problem.empty()) bad.push_back(fmt::format("{} ({})", quote(name), problem));
  }
  if (bad.empty()) return;
  throw data_error(
      "{}: {} of the {} files that {} names cannot be used: {}; the download is "
      "unfinished, download them again",
      folder.string(), bad.size(), names.size(), kIndexName, first_few(bad));
}

WeightFiles read_index(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kIndexName;
  const nlohmann::json document = read_json_file(file);
  const JsonObject index(file, document);
  const nlohmann::json* weight_map = index.find("weight_map");
  if (weight_map == nullptr) index.fail_missing("weight_map");
  if (!weight_map->is_object()) index.fail("weight_map", "an object {tensor: file}");

  WeightFiles files;
  files.has_index = true;
  std::set<std::string> names;
  for (const auto& [tensor, value] : weight_map->items()) {
    if (!value.is_string() || !is_plain_file_name(value.get_ref<const std::string&>())) {
      throw data_error(
          "{}: weight_map gives {} for tensor {}, it must be the name of a file in "
          "the same folder",
          file.string(), quote(value.dump()), quote(tensor));
    }
    names.insert(value.get<std::string>());
    files.weight_map.emplace(tensor, value.get<std::string>());
  }
  if (names.empty()) {
    throw data_error("{}: weight_map names no tensor; download the file again", file.string());
  }
  files.names.assign(names.begin(), names.end());
  if (const nlohmann::json* metadata = index.find("metadata")) {
    const auto total = metadata->is_object() ? metadata->find("total_size") : metadata->end();
    if (total != metadata->end() && total->is_number()) files.total_size = total->get<double>();
  }
  check_shards(folder, files.names);
  return files;
}

// The folder's own entries, sorted, as names.
std::vector<std::string> list_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (auto it = std::filesystem::directory_iterator(folder, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) throw data_error("{}: cannot be listed: {}", folder.string(), error.message());
  std::sort(names.begin(), names.end());
  return names;
}

[[noreturn]] void throw_no_weights(const std::filesystem::path& folder,
                                   const std::vector<std::string>& names) {
  struct Format {
    std::string_view ending;
    std::string_view what;
  };
  constexpr std::array<Format, 6> kFormats = {{
      {".gguf", "a GGUF file (llama.cpp)"},
      {".pth", "Meta's own PyTorch files"},
      {".bin", "PyTorch files"},
      {".pt", "PyTorch files"},
      {".h5", "TensorFlow files"},
      {".msgpack", "Flax files"},
  }};
  for (const Format& format : kFormats) {
    for (const std::string& name : names) {
      if (!name.ends_with(format.ending)) continue;
      throw data_error(
          "{}: has {} ({}) and no safetensors file; get the model's safetensors files "
          "from Hugging Face, or load it with transformers and call "
          "save_pretrained(folder, safe_serialization=True)",
          folder.string(), format.what, quote(name));
    }
  }
  throw data_error("{}: has neither {} nor model.safetensors; download the model's weights",
                   folder.string(), kIndexName);
}

WeightFiles search_folder(const std::filesystem::path& folder, std::vector<std::string>& notices) {
  const std::vector<std::string> names = list_folder(folder);
  WeightFiles files;
  for (const std::string& name : names) {
    if (name.ends_with(".safetensors") && shard_problem(folder / name).empty()) {
      files.names.push_back(name);
    }
  }
  if (files.names.empty()) throw_no_weights(folder, names);
  if (files.names.size() > 1) {
    throw data_error(
        "{}: has {} safetensors files ({}) and no {} that says which of them count; "
        "download the index",
        folder.string(), files.names.size(), first_few(files.names), kIndexName);
  }
  notices.push_back(fmt::format("no {}; using {}, the only safetensors file", kModelFileName,
                                quote(files.names.front())));
  return files;
}

}  // namespace

WeightFiles find_weight_files(const std::filesystem::path& folder,
                              std::vector<std::string>& notices) {
  if (is_there(folder / kIndexName)) return read_index(folder);
  if (is_there(folder / kModelFileName)) {
    WeightFiles files;
    files.names = {kModelFileName};
    return files;
  }
  return search_folder(folder, notices);
}

}  // namespace fut
