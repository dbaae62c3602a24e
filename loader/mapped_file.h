// A read-only file: mapped for looking at its header, read with pread for copying payloads, so that
// a file that shrinks under us is an error message and not a bus error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace fut {

class MappedFile {
 public:
  // Throws Data where the file is missing, is a folder or cannot be opened (reason given).
  static MappedFile open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }  // when it was opened
  // The mapping; touching it is safe only while the file keeps its size.
  [[nodiscard]] std::span<const std::byte> bytes() const;
  // These bytes will be read soon: the disk may begin. Only ever a hint.
  void will_read(std::uint64_t offset, std::uint64_t bytes) const;
  // Copies [offset, offset + destination.size()). Throws Runtime on a short or failed read.
  void read(std::uint64_t offset, std::span<std::byte> destination) const;

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  int descriptor_ = -1;
  void* mapping_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace fut
