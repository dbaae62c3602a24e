// Looks at the files of a source, compares what was seen with what was recorded.
#include "loader/source_identity.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <system_error>

#include "kernels/error.h"
#include "loader/describe.h"
#include "loader/file_reader.h"
#include "loader/json_file.h"
#include "loader/safetensors.h"
#include "loader/weight_files.h"

namespace fut {
namespace {

using nlohmann::json;

constexpr std::uint64_t kHeadBytes = 64U << 10;
constexpr std::uint64_t kPieceBytes = 4U << 20;

bool is_companion(std::string_view name) {
  constexpr std::array<std::string_view, 9> kNames = {"config.json",
                                                      "generation_config.json",
                                                      "tokenizer.json",
                                                      "tokenizer.model",
                                                      "tokenizer_config.json",
                                                      "special_tokens_map.json",
                                                      "added_tokens.json",
                                                      "vocab.json",
                                                      "merges.txt"};
  if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) return true;
  if (name.starts_with("chat_template")) return name.ends_with(".jinja") || name.ends_with(".json");
  return name.starts_with("LICENSE") || name.starts_with("USE_POLICY");
}

std::string read_text(const FileReader& file, std::uint64_t begin, std::uint64_t count) {
  std::string text(static_cast<std::size_t>(count), '\0');
  file.read(begin, std::as_writable_bytes(std::span(text)));
  return text;
}

// How much of the file stands for it in a quick look.
std::uint64_t head_bytes(const FileReader& file) {
  const std::uint64_t size = file.size();
  if (file.path().extension() != ".safetensors" || size < kSafetensorsPrefixBytes) {
    return std::min(size, kHeadBytes);
  }
  std::array<std::byte, kSafetensorsPrefixBytes> prefix = {};
  file.read(0, prefix);
  const std::uint64_t length = claimed_header_bytes(prefix);
  // A header that is none is complained about by whoever opens the checkpoint.
  return std::min(
      size, length > kMaxSafetensorsHeaderBytes ? kHeadBytes : kSafetensorsPrefixBytes + length);
}

std::string content_hash(const FileReader& file, const Sha256Function& sha256,
                         const ParallelFor& parallel_for) {
  const std::uint64_t pieces = (file.size() + kPieceBytes - 1) / kPieceBytes;
  std::vector<std::string> hashes(pieces);
  run_parallel(
      parallel_for, static_cast<std::int64_t>(pieces), [&](std::int64_t begin, std::int64_t end) {
        for (auto i = static_cast<std::uint64_t>(begin); i < static_cast<std::uint64_t>(end); ++i) {
          const std::uint64_t from = i * kPieceBytes;
          hashes[i] = sha256(read_text(file, from, std::min(kPieceBytes, file.size() - from)));
        }
      });
  return sha256(fmt::format("{}", fmt::join(hashes, "")));
}

std::int64_t modified_ns(const std::filesystem::path& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return 0;  // opening it will say what is wrong
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  return std::int64_t{status.st_mtim.tv_sec} * kNanoseconds + status.st_mtim.tv_nsec;
}

SourceFile identify_file(const std::filesystem::path& folder, const std::string& name,
                         IdentityDepth depth, const Sha256Function& sha256,
                         const ParallelFor& parallel_for) {
  const std::filesystem::path path = folder / name;
  SourceFile result;
  result.name = name;
  result.modified_ns = modified_ns(path);
  const FileReader file = FileReader::open(path);
  result.size = file.size();
  result.head = sha256(read_text(file, 0, head_bytes(file)));
  if (depth == IdentityDepth::Full) result.content = content_hash(file, sha256, parallel_for);
  return result;
}

json files_json(const SourceIdentity& identity, bool with_times) {
  json files = json::array();
  for (const SourceFile& file : identity.files) {
    json entry = {
        {"name", file.name}, {"size", file.size}, {"head", file.head}, {"content", file.content}};
    if (with_times) entry["modified_ns"] = file.modified_ns;
    files.push_back(std::move(entry));
  }
  return files;
}

std::string dump(const json& document) {
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

SourceFile parse_file(const std::filesystem::path& where, const json& entry) {
  if (!entry.is_object()) {
    throw data_error("{}: source.files holds {}, it must hold objects; run fut quantize again",
                     where.string(), entry.type_name());
  }
  const JsonObject object(where, entry, "source.files.");
  const auto text = [&](const char* key) {
    const std::optional<std::string> value = object.string(key);
    if (!value) object.fail_missing(key);
    return *value;
  };
  const auto number = [&](const char* key, bool is_needed) -> std::int64_t {
    const json* value = object.find(key);
    if (value == nullptr && is_needed) object.fail_missing(key);
    if (value == nullptr) return 0;
    constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
    // A time before 1970 is a negative number; nothing else is one.
    const bool is_size = is_needed;
    const bool fits = value->is_number_unsigned() ? value->get<std::uint64_t>() <= kLargest
                                                  : value->is_number_integer() && !is_size;
    if (!fits) {
      object.fail(key, fmt::format("a whole number, {}{}",
                                   is_size ? "not negative, at most " : "at most ", kLargest));
    }
    return value->get<std::int64_t>();
  };
  return {.name = text("name"),
          .size = static_cast<std::uint64_t>(number("size", true)),
          .modified_ns = number("modified_ns", false),
          .head = text("head"),
          .content = text("content")};
}

SourceIdentity parse_files(const std::filesystem::path& where, const JsonObject& object) {
  const json* files = object.find("files");
  if (files == nullptr) object.fail_missing("files");
  if (!files->is_array()) object.fail("files", "a list");
  SourceIdentity identity;
  for (const json& entry : *files) identity.files.push_back(parse_file(where, entry));
  return identity;
}

// What differs between two looks at a file of one name; empty: nothing but, perhaps, times.
std::string file_difference(const SourceFile& recorded, const SourceFile& now) {
  const std::string name = quote(now.name);
  if (recorded.size != now.size) {
    return fmt::format("{} has {} bytes, it had {}", name, now.size, recorded.size);
  }
  if (recorded.head != now.head) {
    return fmt::format("{} begins differently: the hash of its head is {}, it was {}", name,
                       now.head, recorded.head);
  }
  const bool both_known = !recorded.content.empty() && !now.content.empty();
  if (both_known && recorded.content != now.content) {
    return fmt::format("{} has another content: its hash is {}, it was {}", name, now.content,
                       recorded.content);
  }
  return {};
}

constexpr std::string_view kConfigName = "config.json";

}  // namespace

std::string config_difference(const SourceIdentity& recorded, const std::filesystem::path& packed,
                              const Sha256Function& sha256) {
  const auto then = std::ranges::find(recorded.files, kConfigName, &SourceFile::name);
  if (then == recorded.files.end()) return {};
  return file_difference(
      *then, identify_file(packed, std::string(kConfigName), IdentityDepth::Quick, sha256, {}));
}

bool is_model_file(const std::filesystem::path& file) {
  std::error_code ignored;
  const std::string name = file.filename().string();
  return (file.extension() == ".safetensors" || name == kIndexName || is_companion(name)) &&
         std::filesystem::exists(file.parent_path() / kConfigName, ignored);
}

std::vector<std::string> list_companions(const std::filesystem::path& source) {
  std::error_code error;
  std::vector<std::string> names;
  for (auto it = std::filesystem::directory_iterator(source, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (is_companion(name) && std::filesystem::is_regular_file(it->path(), ignored)) {
      names.push_back(name);
    }
  }
  if (error) {
    throw data_error("{}: cannot be listed: {}; name a folder that can be read", source.string(),
                     error.message());
  }
  std::sort(names.begin(), names.end());
  return names;
}

SourceIdentity identify_source(const std::filesystem::path& source, IdentityDepth depth,
                               const Sha256Function& sha256, const ParallelFor& parallel_for) {
  std::vector<std::string> notices;  // said by whoever opens the checkpoint
  const WeightFiles weights = find_weight_files(source, notices);
  std::vector<std::string> names = list_companions(source);
  names.insert(names.end(), weights.names.begin(), weights.names.end());
  if (weights.has_index) names.emplace_back(kIndexName);
  std::sort(names.begin(), names.end());
  SourceIdentity identity;
  for (const std::string& name : names) {
    identity.files.push_back(identify_file(source, name, depth, sha256, parallel_for));
  }
  return identity;
}

std::optional<SourceDifference> compare_identity(const SourceIdentity& recorded,
                                                 const SourceIdentity& now) {
  const auto find = [](const SourceIdentity& identity, const std::string& name) {
    return std::find_if(identity.files.begin(), identity.files.end(),
                        [&](const SourceFile& file) { return file.name == name; });
  };
  std::optional<SourceDifference> times;
  for (const SourceFile& old : recorded.files) {
    const auto file = find(now, old.name);
    if (file == now.files.end()) {
      return SourceDifference{fmt::format("{} ({} bytes) is gone", quote(old.name), old.size)};
    }
    const std::string difference = file_difference(old, *file);
    if (!difference.empty()) return SourceDifference{difference};
    const bool both_known = old.modified_ns != 0 && file->modified_ns != 0;
    if (!times && both_known && old.modified_ns != file->modified_ns) {
      times = SourceDifference{fmt::format("{} was written at {} ns after 1970, it was at {}",
                                           quote(old.name), file->modified_ns, old.modified_ns),
                               true};
    }
  }
  for (const SourceFile& file : now.files) {
    if (find(recorded, file.name) != recorded.files.end()) continue;
    return SourceDifference{fmt::format("{} ({} bytes) is new", quote(file.name), file.size)};
  }
  return times;
}

std::optional<SourceDifference> compare_source(const SourceIdentity& recorded,
                                               const std::filesystem::path& source,
                                               IdentityDepth depth, const Sha256Function& sha256,
                                               const ParallelFor& parallel_for) {
  return compare_identity(recorded, identify_source(source, depth, sha256, parallel_for));
}

std::string identity_json(const SourceIdentity& identity) {
  return dump({{"files", files_json(identity, false)}});
}

SourceIdentity parse_identity(const std::filesystem::path& file, std::string_view text) {
  const json document = parse_json_object(file, std::string(text));
  return parse_files(file, JsonObject(file, document, "source."));
}

std::string source_note_json(const SourceNote& note) {
  return dump({{"folder", note.folder}, {"files", files_json(note.identity, true)}});
}

bool has_source_note(const std::filesystem::path& packed) {
  std::error_code error;
  return std::filesystem::is_regular_file(packed / kSourceNoteName, error);
}

std::optional<SourceNote> read_source_note(const std::filesystem::path& packed) {
  const std::filesystem::path file = packed / kSourceNoteName;
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(file, error))) return std::nullopt;
  const json document = read_json_file(file);
  const JsonObject object(file, document);
  const std::optional<std::string> folder = object.string("folder");
  if (!folder) object.fail_missing("folder");
  return SourceNote{*folder, parse_files(file, object)};
}

}  // namespace fut
