// The cache is laid out as huggingface_hub documents it: models--ORG--NAME/refs/BRANCH holds a
// commit, snapshots/COMMIT holds the files (or links to blobs/), *.incomplete are unfinished
// downloads.
#include "apps/model_lookup.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string_view>

#include "kernels/error.h"
#include "loader/weight_files.h"

namespace fut::app {
namespace fs = std::filesystem;
namespace {

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}
bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// What a folder lacks to be what is wanted; empty: nothing.
std::string missing_in(const fs::path& folder, Wanted wanted) {
  if (!is_folder(folder)) {
    std::error_code error;
    const fs::file_status status = fs::symlink_status(folder, error);
    if (status.type() == fs::file_type::none) return error.message();
    return fs::exists(status) ? "not a folder" : "not there";
  }
  if (wanted == Wanted::Model) return is_file(folder / "config.json") ? "" : "no config.json in it";
  if (is_file(folder / "tokenizer.json") || is_file(folder / "tokenizer.model")) return "";
  return "neither tokenizer.json nor tokenizer.model in it";
}

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

// "org/name@revision" in parts.
struct HubName {
  std::string repository;  // "org/name"
  std::string revision;    // empty: main
};

std::optional<HubName> hub_name(const std::string& argument) {
  const std::size_t at = argument.find('@');
  const HubName name{argument.substr(0, at),
                     at == std::string::npos ? "" : argument.substr(at + 1)};
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  };
  const std::size_t slash = name.repository.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == name.repository.size()) {
    return std::nullopt;
  }
  for (const std::string& part :
       {name.repository.substr(0, slash), name.repository.substr(slash + 1)}) {
    if (part.front() == '.' || !std::all_of(part.begin(), part.end(), allowed)) return std::nullopt;
  }
  if (name.revision.find("..") != std::string::npos) return std::nullopt;
  return name;
}

std::string trimmed_file_text(const fs::path& path) {
  std::ifstream file(path);
  std::string text;
  file >> text;
  return text;
}

// What lies in a folder; nothing where it cannot be looked at.
std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    found.push_back(it->path());
  }
  return found;
}

std::vector<fs::path> subfolders(const fs::path& folder) {
  std::vector<fs::path> found = entries(folder);
  std::erase_if(found, [](const fs::path& path) { return !is_folder(path); });
  std::sort(found.begin(), found.end());
  return found;
}

bool has_unfinished_download(const fs::path& repository) {
  const std::vector<fs::path> blobs = entries(repository / "blobs");
  return std::any_of(blobs.begin(), blobs.end(),
                     [](const fs::path& path) { return path.extension() == ".incomplete"; });
}

// The snapshot of a revision: a branch or tag under refs/, else a commit or its beginning.
std::optional<fs::path> find_snapshot(const fs::path& repository, const std::string& revision,
                                      std::string& notice) {
  const fs::path snapshots = repository / "snapshots";
  const fs::path reference = repository / "refs" / (revision.empty() ? "main" : revision);
  if (is_file(reference)) {
    const std::string commit = trimmed_file_text(reference);
    if (!commit.empty() && is_folder(snapshots / commit)) return snapshots / commit;
  }
  const std::vector<fs::path> all = subfolders(snapshots);
  if (revision.empty()) {
    if (all.size() != 1) return std::nullopt;
    notice = fmt::format("{} names no snapshot that is there; taking the only one, {}",
                         reference.string(), all.front().filename().string());
    return all.front();
  }
  std::optional<fs::path> match;
  for (const fs::path& snapshot : all) {
    if (!snapshot.filename().string().starts_with(revision)) continue;
    if (match) return std::nullopt;  // the beginning of two commits
    match = snapshot;
  }
  return match;
}

// Looks in the cache; adds to found.tried where that fails.
bool look_in_cache(const HubName& name, Wanted wanted, FoundFolder& found) {
  const auto root = hugging_face_cache();
  if (!root) {
    found.tried.emplace_back("Hugging Face cache: no folder known (HF_HOME and HOME are not set)");
    return false;
  }
  std::string folder = "models--" + name.repository;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path repository = *root / folder;
  const auto snapshot = find_snapshot(repository, name.revision, found.notice);
  std::string reason;
  if (!is_folder(repository)) {
    reason = "not there";
  } else if (!snapshot) {
    reason = name.revision.empty() ? "no snapshot of main" : "no snapshot " + name.revision;
  } else {
    reason = missing_in(*snapshot, wanted);
  }
  if (reason.empty()) {
    found.path = *snapshot;
    return true;
  }
  if (has_unfinished_download(repository)) reason += " (a download is unfinished)";
  found.tried.push_back(
      fmt::format("{}: {}", (snapshot ? *snapshot : repository).string(), reason));
  return false;
}

// A weight file named directly stands for its folder, which has to use that very file.
bool look_at_weight_file(const fs::path& file, Wanted wanted, FoundFolder& found) {
  if (file.extension() != ".safetensors" || !is_file(file)) return false;
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  std::string reason = missing_in(folder, wanted);
  if (reason.empty()) {
    std::vector<std::string> notices;
    const std::vector<std::string> names = find_weight_files(folder, notices).names;
    if (std::find(names.begin(), names.end(), file.filename().string()) != names.end()) {
      found.path = folder;
      return true;
    }
    reason = fmt::format("its weights are {}, not {}; name the folder to use them",
                         fmt::join(names, ", "), file.filename().string());
  }
  found.tried.push_back(fmt::format("{}: {}", folder.string(), reason));
  return false;
}

// What lies beside the program, built or installed.
fs::path shared_folder(std::error_code& error) {
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return (program.parent_path() / "../share/fut").lexically_normal();
}

FoundFolder find_demonstration_model(Wanted wanted) {
  std::error_code error;
  const fs::path folder = shared_folder(error) / "demo-6m";
  const std::string reason = error ? error.message() : missing_in(folder, wanted);
  if (reason.empty()) return {folder, {}, {}};
  throw data_error(
      "no -m given and the demonstration model is not beside the program: {}: {}; give -m FOLDER, "
      "or install it with cmake --install",
      folder.string(), reason);
}

// A command or a flag to go on with.
std::string what_next(const std::string& argument, Wanted wanted, std::string_view flag) {
  const fs::path path = argument;
  const std::string parent = path.has_parent_path() ? path.parent_path().string() : ".";
  if (is_folder(path)) return "ls " + argument;
  if (is_file(path) && missing_in(parent, wanted).empty()) {
    return fmt::format("pass the folder, {} {}", flag, parent);
  }
  const auto name = hub_name(argument);
  if (!name) return "ls " + parent;
  // Meta's own form of the weights, as large again, is read by nothing here.
  return fmt::format("hf download {}{} --exclude 'original/*'", name->repository,
                     name->revision.empty() ? "" : " --revision " + name->revision);
}

}  // namespace

std::optional<fs::path> hugging_face_cache() {
  if (const auto v = variable("HF_HUB_CACHE")) return *v;
  if (const auto v = variable("HF_HOME")) return fs::path(*v) / "hub";
  if (const auto v = variable("HUGGINGFACE_HUB_CACHE")) return *v;
  if (const auto v = variable("XDG_CACHE_HOME")) return fs::path(*v) / "huggingface/hub";
  if (const auto v = variable("HOME")) return fs::path(*v) / ".cache/huggingface/hub";
  return std::nullopt;
}

fs::path find_preset(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos) return {};
  std::error_code error;
  fs::path file = shared_folder(error) / (name + ".json");
  return !error && is_file(file) ? file : fs::path();
}

FoundFolder find_model_folder(const std::string& argument, Wanted wanted, std::string_view flag) {
  if (argument.empty()) return find_demonstration_model(wanted);
  FoundFolder found;
  const std::string reason = missing_in(argument, wanted);
  if (reason.empty()) {
    found.path = argument;
    return found;
  }
  if (look_at_weight_file(argument, wanted, found)) return found;
  // A weight file was explained by what its folder lacks.
  if (found.tried.empty()) found.tried.push_back(fmt::format("{}: {}", argument, reason));
  const auto name = hub_name(argument);
  if (name && look_in_cache(*name, wanted, found)) return found;
  throw data_error("no {} for {} {}; tried {}; next: {}",
                   wanted == Wanted::Model ? "model" : "tokenizer", flag, argument,
                   fmt::join(found.tried, "; "), what_next(argument, wanted, flag));
}

bool has_weights(const fs::path& folder) {
  const std::vector<fs::path> files = entries(folder);
  return std::any_of(files.begin(), files.end(), [](const fs::path& file) {
    return file.extension() == ".safetensors" || file.filename() == kIndexName;
  });
}

}  // namespace fut::app
