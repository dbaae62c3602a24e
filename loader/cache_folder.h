// Where packed folders that nobody asked for by name are kept: the XDG Base Directory rules, and one
// entry for each source and set of options. Makes no folder and reads no file.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "loader/packed_options.h"
#include "loader/source_identity.h"

namespace fut {

// The variables that count, as they are set; nullopt: not set.
struct CacheEnvironment {
  std::optional<std::string> xdg_cache_home;
  std::optional<std::string> home;
};
[[nodiscard]] CacheEnvironment read_cache_environment();

// `flag`, the value of --cache-dir, if there is one; else XDG_CACHE_HOME/fut where that is an
// absolute path; else HOME/.cache/fut. Throws Usage, naming --cache-dir and --no-cache, where none
// is to be had.
[[nodiscard]] std::filesystem::path cache_root(const std::optional<std::filesystem::path>& flag,
                                               const CacheEnvironment& environment);

// "Llama-3.1-8B-0123456789abcdef": the source folder's name made harmless (of a Hugging Face
// snapshot, the model's), and 16 digits of a hash of its canonical path and the options.
[[nodiscard]] std::string cache_entry_name(const std::filesystem::path& source,
                                           const PackedOptions& options,
                                           const Sha256Function& sha256);

}  // namespace fut
