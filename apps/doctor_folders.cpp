// The half of fut doctor that looks at folders and disks.
#include <algorithm>
#include <filesystem>
#include <unistd.h>

#include "apps/doctor_findings.h"
#include "apps/model_lookup.h"
#include "apps/progress.h"
#include "apps/words.h"
#include "engine/parallel.h"
#include "kernels/error.h"
#include "loader/cache_folder.h"
#include "loader/packed_model.h"
#include "loader/source_identity.h"

namespace fut::app {
namespace fs = std::filesystem;
namespace {

// A copy of a Llama of eight billion weights takes twelve times as much.
constexpr std::uint64_t kLittleSpace = std::uint64_t{1} << 30;

struct Folder {
  fs::path path;
  bool exists = false;
  bool writable = false;  // or can be made
  std::uint64_t free_bytes = 0;
};

Folder look_at_folder(const fs::path& path) {
  std::error_code ignored;
  Folder folder{path, fs::is_directory(path, ignored), false, 0};
  fs::path there = fs::absolute(path, ignored);
  while (!fs::exists(there, ignored) && there != there.parent_path()) there = there.parent_path();
  folder.writable = fs::is_directory(there, ignored) && ::access(there.c_str(), W_OK | X_OK) == 0;
  const fs::space_info space = fs::space(there, ignored);
  folder.free_bytes = space.available == static_cast<std::uintmax_t>(-1) ? 0 : space.available;
  return folder;
}

Json describe(const Folder& folder) {
  return {{"path", folder.path.string()},
          {"exists", folder.exists},
          {"writable", folder.writable},
          {"free", folder.free_bytes}};
}

std::string folder_text(const Folder& folder) {
  return fmt::format("{}: {}{}, {} free", folder.path.string(),
                     folder.exists ? "" : "not there yet, ",
                     folder.writable ? "writable" : "not writable", size_text(folder.free_bytes));
}

std::vector<fs::path> entries_of(const fs::path& root) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

// One copy: how large, of what, and whether it is whole. Throws Data where it is not.
std::string look_at_copy(const fs::path& entry, bool check, Json& json) {
  ModelConfig config = load_model_config(entry);
  const PackedModel packed = PackedModel::open(entry, config);
  json["bytes"] = packed.info().file_bytes;
  std::string text = size_text(packed.info().file_bytes);
  if (const auto note = read_source_note(entry)) {
    std::error_code ignored;
    const bool is_there = fs::exists(note->folder, ignored);
    json["source"] = note->folder;
    json["source_exists"] = is_there;
    text += fmt::format(" of {}{}", note->folder, is_there ? "" : ", which is gone");
  }
  if (check) {
    packed.verify(parallel_for_on_threads(0),
                  rate_progress("checking " + entry.filename().string()));
  }
  json["checksums"] = check ? "all met" : "not checked";
  return text + (check ? ", checksums met" : ", checksums not checked");
}

void look_at_entry(const fs::path& entry, bool check, DoctorFindings& findings, Json& copies) {
  const std::string name = entry.filename().string();
  std::error_code ignored;
  if (!fs::is_directory(entry, ignored)) return;
  if (name.find(".partial-") != std::string::npos) {
    return findings.line("", name +
                                 ": being written, or left by a process that was killed (the next "
                                 "one removes it then)");
  }
  if (!PackedModel::is_packed(entry) && !has_source_note(entry)) return;
  Json json = {{"name", name}};
  try {
    findings.line("", fmt::format("{}: {}", name, look_at_copy(entry, check, json)));
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::Data) throw;
    json["checksums"] = e.what();
    findings.line("", name + ": damaged, or of another version");
    findings.problems.push_back(
        {fmt::format("a quantised copy cannot be used: {}", e.what()),
         fmt::format("rm -r {}; the next run makes it anew", entry.string()),
         static_cast<int>(ErrorKind::Data)});
  }
  copies.push_back(std::move(json));
}

void look_at_cache(const DoctorOptions& options, DoctorFindings& findings) {
  Json& json = findings.document["cache"];
  fs::path root;
  try {
    const std::string& flag = options.copies.cache_dir;
    root = cache_root(flag.empty() ? std::nullopt : std::optional<fs::path>(flag),
                      read_cache_environment());
  } catch (const Error& e) {
    json = nullptr;
    findings.line("cache", "none");
    findings.problems.push_back({e.what(), "give --cache-dir DIR, or set HOME"});
    return;
  }
  const Folder folder = look_at_folder(root);
  json = describe(folder);
  json["copies"] = Json::array();
  findings.line("cache", folder_text(folder));
  if (!folder.writable) {
    findings.problems.push_back(
        {fmt::format("{}: cannot be written, so each run quantises anew", root.string()),
         "give --cache-dir DIR (or FUT_CACHE_DIR), a folder of your own"});
  } else if (folder.free_bytes < kLittleSpace) {
    findings.problems.push_back(
        {fmt::format("{}: {} are free on its disk; a copy takes as much again as fut plan says",
                     root.string(), size_text(folder.free_bytes)),
         "give --cache-dir DIR (or FUT_CACHE_DIR) on a larger disk"});
  }
  for (const fs::path& entry : entries_of(root)) {
    look_at_entry(entry, options.check_copies, findings, json["copies"]);
  }
}

}  // namespace

void look_at_folders(const DoctorOptions& options, DoctorFindings& findings) {
  look_at_cache(options, findings);
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  if (error) {
    findings.line("temporary", "none: " + error.message());
    findings.problems.push_back(
        {"there is no temporary folder: " + error.message(), "set TMPDIR to a folder with room"});
  } else {
    const Folder folder = look_at_folder(temporary);
    findings.document["temporary"] = describe(folder);
    findings.line("temporary", folder_text(folder));
  }
  const auto models = hugging_face_cache();
  findings.document["models"] = models ? Json(models->string()) : Json(nullptr);
  if (!models)
    return findings.line("models", "no Hugging Face cache (neither HF_HOME nor HOME is set)");
  const bool is_there = fs::is_directory(*models, error);
  const auto count = static_cast<std::uint64_t>(std::ranges::count_if(
      entries_of(*models),
      [](const fs::path& entry) { return entry.filename().string().starts_with("models--"); }));
  findings.line("models", fmt::format("{}: {}", models->string(),
                                      is_there ? counted(count, "model") : "not there"));
}

}  // namespace fut::app
