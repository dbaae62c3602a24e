// A file of parts, each with its length in front: three of the file, the number of those of the state,
// these, and a checksum. It goes out part by part: a state is held once.
#include "loader/packed_progress.h"

#include <span>
#include <system_error>

#include "kernels/check.h"
#include "kernels/error.h"
#include "loader/crc32c.h"
#include "loader/file_reader.h"
#include "loader/partial_folder.h"

namespace fut {
namespace {

constexpr char kAsideName[] = "progress.aside";
constexpr std::uint64_t kMostParts = 16;  // of a state

// Writes parts and sums up what it has written.
class PartWriter {
 public:
  explicit PartWriter(const std::filesystem::path& path) : file_(path, 0) {}

  template <class T>
  void put(const T* values, std::uint64_t count) {
    write(std::as_bytes(std::span(&count, 1)));
    write(std::as_bytes(std::span(values, static_cast<std::size_t>(count))));
  }
  void finish() {
    const std::uint32_t checksum = checksum_;
    put(&checksum, 1);
  }

 private:
  void write(std::span<const std::byte> bytes) {
    checksum_ = crc32c(bytes, checksum_);
    file_.write(bytes);
  }

  OutputFile file_;
  std::uint32_t checksum_ = 0;
};

// Reads parts and sums up what it has read.
class PartReader {
 public:
  explicit PartReader(const std::filesystem::path& path) : file_(FileReader::open(path)) {}

  // False: there is less of the next part than it says.
  template <class Container>
  bool take(Container& values) {
    std::uint64_t count = 0;
    if (!read(std::as_writable_bytes(std::span(&count, 1)))) return false;
    if ((file_.size() - offset_) / sizeof(values[0]) < count) return false;
    values.resize(static_cast<std::size_t>(count));
    return read(std::as_writable_bytes(std::span(values.data(), values.size())));
  }
  // Whether the lengths of all parts make the file's: before a part of any size is read.
  [[nodiscard]] bool adds_up() const {
    // Key, complete tensors, chunks; the number of the state's parts, these, the checksum.
    std::uint64_t at = 0;
    for (const std::uint64_t bytes : {1, 8, 4}) {
      if (!skip(at, bytes)) return false;
    }
    std::uint64_t num_parts = 0;
    const std::uint64_t of_number = at + sizeof(num_parts);
    if (!skip(at, sizeof(num_parts)) || at != of_number + sizeof(num_parts)) return false;
    file_.read(of_number, std::as_writable_bytes(std::span(&num_parts, 1)));
    if (num_parts > kMostParts) return false;
    for (std::uint64_t i = 0; i < num_parts; ++i) {
      if (!skip(at, 1)) return false;
    }
    return skip(at, sizeof(std::uint32_t)) && at == file_.size();
  }
  // Whether the checksum comes next, and nothing after it.
  bool is_finished() {
    const std::uint32_t expected = checksum_;
    std::vector<std::uint32_t> found;
    return take(found) && found.size() == 1 && found[0] == expected && offset_ == file_.size();
  }

 private:
  // A part of elements of so many bytes at `at`, which moves behind it.
  bool skip(std::uint64_t& at, std::uint64_t bytes) const {
    std::uint64_t count = 0;
    if (file_.size() - at < sizeof(count)) return false;
    file_.read(at, std::as_writable_bytes(std::span(&count, 1)));
    at += sizeof(count);
    if ((file_.size() - at) / bytes < count) return false;
    at += bytes * count;
    return true;
  }
  bool read(std::span<std::byte> bytes) {
    if (file_.size() - offset_ < bytes.size()) return false;
    file_.read(offset_, bytes);
    offset_ += bytes.size();
    checksum_ = crc32c(bytes, checksum_);
    return true;
  }

  FileReader file_;
  std::uint64_t offset_ = 0;
  std::uint32_t checksum_ = 0;
};

}  // namespace

void write_progress(const std::filesystem::path& folder, const PackedProgress& progress,
                    const SavedState& state) {
  FUT_CHECK(state.size() <= kMostParts, "{} parts of a state", state.size());
  const std::filesystem::path aside = folder / kAsideName;
  std::error_code error;
  std::filesystem::remove(aside, error);
  {
    PartWriter writer(aside);
    writer.put(progress.key.data(), progress.key.size());
    writer.put(&progress.tensors, 1);
    writer.put(progress.chunks.data(), progress.chunks.size());
    const std::uint64_t num_parts = state.size();
    writer.put(&num_parts, 1);
    for (const std::vector<std::byte>& part : state) writer.put(part.data(), part.size());
    writer.finish();
  }
  std::filesystem::rename(aside, folder / kProgressName, error);
  if (error) {
    throw runtime_failure("{}: cannot be renamed: {}; check the disk, or choose another folder",
                          aside.string(), error.message());
  }
}

std::optional<FoundProgress> read_progress(const std::filesystem::path& folder) {
  try {
    PartReader reader(folder / kProgressName);
    FoundProgress found;
    std::vector<std::uint64_t> tensors, num_parts;
    if (!reader.adds_up() || !reader.take(found.progress.key) || !reader.take(tensors) ||
        !reader.take(found.progress.chunks) || !reader.take(num_parts) || tensors.size() != 1 ||
        num_parts.size() != 1) {
      return std::nullopt;
    }
    found.progress.tensors = tensors[0];
    for (std::uint64_t i = 0; i < num_parts[0]; ++i) {
      if (!reader.take(found.state.emplace_back())) return std::nullopt;
    }
    if (!reader.is_finished()) return std::nullopt;
    return found;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace fut
