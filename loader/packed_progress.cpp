// A file of four parts, each with its length in front, and a checksum at the end.
#include "loader/packed_progress.h"

#include <array>
#include <cstring>
#include <span>
#include <system_error>

#include "kernels/error.h"
#include "loader/crc32c.h"
#include "loader/file_reader.h"
#include "loader/partial_folder.h"

namespace fut {
namespace {

constexpr char kAsideName[] = "progress.aside";

template <class T>
void put(std::vector<std::byte>& bytes, const T* values, std::uint64_t count) {
  const auto length = std::as_bytes(std::span(&count, 1));
  bytes.insert(bytes.end(), length.begin(), length.end());
  const auto part = std::as_bytes(std::span(values, static_cast<std::size_t>(count)));
  bytes.insert(bytes.end(), part.begin(), part.end());
}

// Takes the next part off `rest`. False: there is less of it than it says.
template <class Container>
bool take(std::span<const std::byte>& rest, Container& values) {
  std::uint64_t count = 0;
  if (rest.size() < sizeof(count)) return false;
  std::memcpy(&count, rest.data(), sizeof(count));
  rest = rest.subspan(sizeof(count));
  if (rest.size() / sizeof(values[0]) < count) return false;
  values.resize(static_cast<std::size_t>(count));
  const std::size_t size = values.size() * sizeof(values[0]);
  if (size > 0) std::memcpy(values.data(), rest.data(), size);
  rest = rest.subspan(size);
  return true;
}

// Whether the parts' lengths make the file's: before a file of any size is read whole.
bool adds_up(const FileReader& file) {
  // Key, complete tensors, chunks, state, checksum.
  constexpr std::array<std::uint64_t, 5> kElementBytes = {1, 8, 4, 1, 4};
  std::uint64_t rest = file.size();
  for (const std::uint64_t bytes : kElementBytes) {
    std::uint64_t count = 0;
    if (rest < sizeof(count)) return false;
    file.read(file.size() - rest, std::as_writable_bytes(std::span(&count, 1)));
    rest -= sizeof(count);
    if (rest / bytes < count) return false;
    rest -= bytes * count;
  }
  return rest == 0;
}

}  // namespace

void write_progress(const std::filesystem::path& folder, const PackedProgress& progress) {
  std::vector<std::byte> bytes;
  put(bytes, progress.key.data(), progress.key.size());
  put(bytes, &progress.tensors, 1);
  put(bytes, progress.chunks.data(), progress.chunks.size());
  put(bytes, progress.state.data(), progress.state.size());
  const std::uint32_t checksum = crc32c(bytes);
  put(bytes, &checksum, 1);
  const std::filesystem::path aside = folder / kAsideName;
  std::error_code error;
  std::filesystem::remove(aside, error);
  OutputFile(aside, 0).write(bytes);
  std::filesystem::rename(aside, folder / kProgressName, error);
  if (error) {
    throw runtime_failure("{}: cannot be renamed: {}; check the disk, or choose another folder",
                          aside.string(), error.message());
  }
}

std::optional<PackedProgress> read_progress(const std::filesystem::path& folder) {
  std::vector<std::byte> bytes;
  try {
    const FileReader file = FileReader::open(folder / kProgressName);
    if (!adds_up(file)) return std::nullopt;
    bytes.resize(static_cast<std::size_t>(file.size()));
    file.read(0, bytes);
  } catch (const Error&) {
    return std::nullopt;
  }
  PackedProgress progress;
  std::vector<std::uint64_t> tensors;
  std::vector<std::uint32_t> checksum;
  std::span<const std::byte> rest = bytes;
  const bool is_whole = take(rest, progress.key) && take(rest, tensors) &&
                        take(rest, progress.chunks) && take(rest, progress.state);
  const std::size_t covered = bytes.size() - rest.size();
  if (!is_whole || tensors.size() != 1 || !take(rest, checksum) || checksum.size() != 1 ||
      checksum[0] != crc32c(std::span(bytes).first(covered))) {
    return std::nullopt;
  }
  progress.tensors = tensors[0];
  return progress;
}

}  // namespace fut
