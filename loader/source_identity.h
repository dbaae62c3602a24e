// Which checkpoint a packed folder was made from, so that a source that changed is noticed: the
// files that count, their sizes and hashes. Nothing of where they lie is part of it.
//
// SHA-256 is an argument: this folder has no implementation of its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "loader/quantized_matrix.h"

namespace fut {

// 64 hexadecimal digits of the SHA-256 of the bytes. Called from several threads at once.
using Sha256Function = std::function<std::string(std::string_view bytes)>;

struct SourceFile {
  std::string name;  // within the folder
  std::uint64_t size = 0;
  std::int64_t modified_ns = 0;  // since 1970; 0: not known
  std::string head;     // SHA-256 of the safetensors header, or of the first 64 KiB of another file
  std::string content;  // SHA-256 of the SHA-256s of every 4 MiB, as text; empty: not taken
  bool operator==(const SourceFile&) const = default;
};

struct SourceIdentity {
  std::vector<SourceFile> files;  // by name: weights, their index, and list_companions()
  bool operator==(const SourceIdentity&) const = default;
};

enum class IdentityDepth {
  Quick,  // sizes, times, heads: milliseconds
  Full,   // and contents: reads everything
};

// The files beside the weights that a packed folder takes along byte for byte, sorted: config.json,
// generation_config.json, tokenizer files, chat templates, licences. Throws Data where the folder
// cannot be listed.
[[nodiscard]] std::vector<std::string> list_companions(const std::filesystem::path& source);

// Whether this is a file that a model is made of, by its name and that of its neighbour config.json.
[[nodiscard]] bool is_model_file(const std::filesystem::path& file);

// Throws Data as find_weight_files, and where a file cannot be read.
[[nodiscard]] SourceIdentity identify_source(const std::filesystem::path& source,
                                             IdentityDepth depth, const Sha256Function& sha256,
                                             const ParallelFor& parallel_for);

struct SourceDifference {
  std::string text;         // "model.safetensors has 12 bytes, it had 10": file and both values
  bool times_only = false;  // sizes and heads agree: a look at the contents would tell
};

// What is different, the first such file; nullopt: nothing. Times and contents are compared where
// both sides know them.
[[nodiscard]] std::optional<SourceDifference> compare_identity(const SourceIdentity& recorded,
                                                               const SourceIdentity& now);

// compare_identity with the source as it is now.
[[nodiscard]] std::optional<SourceDifference> compare_source(const SourceIdentity& recorded,
                                                             const std::filesystem::path& source,
                                                             IdentityDepth depth,
                                                             const Sha256Function& sha256,
                                                             const ParallelFor& parallel_for);

// How the config.json beside a packed file differs from the one that its weights were made with, by
// size and head; empty: not at all. A packed folder takes it along byte for byte, and a changed one
// computes another function with the same weights. Throws Data where it cannot be read.
[[nodiscard]] std::string config_difference(const SourceIdentity& recorded,
                                            const std::filesystem::path& packed,
                                            const Sha256Function& sha256);

// ---- as text ------------------------------------------------------------------------------------

// Without times: copies of a source make the same packed file. Equal identities give equal text.
[[nodiscard]] std::string identity_json(const SourceIdentity& identity);
// Throws Data naming `file`.
[[nodiscard]] SourceIdentity parse_identity(const std::filesystem::path& file,
                                            std::string_view json);

// What a cache entry keeps beside its model.safetensors: where the source lies, and times as well.
inline constexpr char kSourceNoteName[] = "source.json";
// Where it is written before it is renamed; left behind where that was cut short.
inline constexpr char kSourceNotePartialName[] = "source.json.partial";
struct SourceNote {
  std::string folder;  // canonical path
  SourceIdentity identity;
};
[[nodiscard]] std::string source_note_json(const SourceNote& note);
// Whether the folder is an automatic copy, also where its weights are gone or cut.
[[nodiscard]] bool has_source_note(const std::filesystem::path& packed);
// nullopt: the folder has none. Throws Data where it is damaged.
[[nodiscard]] std::optional<SourceNote> read_source_note(const std::filesystem::path& packed);

}  // namespace fut
