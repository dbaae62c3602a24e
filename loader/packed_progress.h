// How far a packed file has come that is being written: beside it in its partial folder, so that the
// next writer of the same file can go on where a killed one was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fut {

inline constexpr char kProgressName[] = "progress";

struct PackedProgress {
  std::string key;                    // says whether two writers write the same bytes
  std::uint64_t tensors = 0;          // complete ones
  std::vector<std::uint32_t> chunks;  // checksums of their bytes, as ChunkChecksums has them
};
// Of whoever computes the tensors, in parts as they come: they may be gigabytes.
using SavedState = std::vector<std::vector<std::byte>>;
struct FoundProgress {
  PackedProgress progress;
  SavedState state;
};

// Written aside and renamed: there is one progress or the next. Not brought onto the disk, as the
// tensors are not: whoever goes on compares checksums. Throws Runtime.
void write_progress(const std::filesystem::path& folder, const PackedProgress& progress,
                    const SavedState& state);
// nullopt: there is none, or a damaged one.
[[nodiscard]] std::optional<FoundProgress> read_progress(const std::filesystem::path& folder);

}  // namespace fut
