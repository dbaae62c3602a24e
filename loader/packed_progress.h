// How far a packed file has come that is being written: beside it in its partial folder, so that the
// next writer of the same file can go on where a killed one was. Internal to loader/.
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
  std::vector<std::byte> state;       // of whoever computes the tensors
};

// Written aside and renamed: there is one progress or the next. Not brought onto the disk, as the
// tensors are not: whoever goes on compares checksums. Throws Runtime.
void write_progress(const std::filesystem::path& folder, const PackedProgress& progress);
// nullopt: there is none, or a damaged one.
[[nodiscard]] std::optional<PackedProgress> read_progress(const std::filesystem::path& folder);

}  // namespace fut
