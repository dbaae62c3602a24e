// Names of folders, computed from strings.
#include "loader/cache_folder.h"

#include <cctype>
#include <cstdlib>

#include "kernels/error.h"

namespace fut {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// What a user calls the model. A Hugging Face cache has it two folders up from the files:
// models--ORG--NAME/snapshots/COMMIT.
std::string model_name(const std::filesystem::path& folder) {
  const std::string prefix = "models--";
  const std::string above = folder.parent_path().parent_path().filename().string();
  if (folder.parent_path().filename() == "snapshots" && above.starts_with(prefix)) {
    return above.substr(prefix.size());
  }
  return folder.filename().string();
}

// At most 64 characters that no file system or shell minds.
std::string harmless(const std::string& name) {
  constexpr std::size_t kLongest = 64;
  std::string out;
  for (const char c : name.substr(0, kLongest)) {
    const bool is_plain =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '_';
    const bool is_ascii = static_cast<unsigned char>(c) < 0x80;
    out += is_plain && is_ascii && !(out.empty() && c == '.') ? c : '_';
  }
  return out.empty() ? "model" : out;
}

}  // namespace

CacheEnvironment read_cache_environment() {
  return {.xdg_cache_home = variable("XDG_CACHE_HOME"), .home = variable("HOME")};
}

std::filesystem::path cache_root(const std::optional<std::filesystem::path>& flag,
                                 const CacheEnvironment& environment) {
  if (flag && !flag->empty()) return *flag;
  // The rules say that a path that is not absolute is to be ignored.
  const std::filesystem::path xdg = environment.xdg_cache_home.value_or("");
  if (xdg.is_absolute()) return xdg / "fut";
  const std::filesystem::path home = environment.home.value_or("");
  if (home.is_absolute()) return home / ".cache" / "fut";
  throw usage_error(
      "no folder for the cache: HOME is {} and XDG_CACHE_HOME is {}, one of them must be an "
      "absolute path; pass --cache-dir FOLDER, or --no-cache to keep nothing",
      environment.home ? "'" + *environment.home + "'" : "not set",
      environment.xdg_cache_home ? "'" + *environment.xdg_cache_home + "'" : "not set");
}

std::string cache_entry_name(const std::filesystem::path& source, const PackedOptions& options,
                             const Sha256Function& sha256) {
  std::error_code error;
  std::filesystem::path canonical = std::filesystem::canonical(source, error);
  if (error) {
    throw data_error("{}: its place cannot be found out: {}", source.string(), error.message());
  }
  constexpr std::size_t kDigits = 16;
  const std::string hash = sha256(canonical.string() + '\n' + options_json(options));
  return harmless(model_name(canonical)) + "-" + hash.substr(0, kDigits);
}

}  // namespace fut
