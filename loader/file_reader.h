// A read-only file, read by pread alone and never mapped: a file that shrinks under us, a disk that
// fails and a network share that goes away are error messages, where a mapping would be a bus error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <sys/stat.h>

namespace fut {

class FileReader {
 public:
  // Throws Data where the file is missing, is a folder or cannot be opened (reason given).
  static FileReader open(const std::filesystem::path& path);

  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&& other) noexcept;
  ~FileReader();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const {  // when it was opened
    return static_cast<std::uint64_t>(opened_.st_size);
  }
  // These bytes will be read soon: the disk may begin. Only ever a hint.
  void will_read(std::uint64_t offset, std::uint64_t bytes) const;
  // Copies [offset, offset + destination.size()). Throws Runtime on a short or failed read.
  void read(std::uint64_t offset, std::span<std::byte> destination) const;
  // Throws Runtime where something wrote to the file since it was opened: what was read until now may
  // be half of one content and half of another.
  void require_unchanged() const;

 private:
  FileReader() = default;
  std::filesystem::path path_;
  int descriptor_ = -1;
  struct stat opened_ = {};
};

}  // namespace fut
