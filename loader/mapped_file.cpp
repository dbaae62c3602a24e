// open, fstat, mmap and pread with words for what went wrong.
#include "loader/mapped_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "kernels/error.h"

namespace fut {
namespace {

std::string reason(int error_number) {
  return std::generic_category().message(error_number);
}

[[noreturn]] void throw_cannot_open(const std::filesystem::path& path, int error_number) {
  std::error_code ignored;
  if (error_number == ENOENT && std::filesystem::is_symlink(path, ignored)) {
    throw data_error(
        "{}: is a link to {}, which does not exist; the download is unfinished or was "
        "cleaned up, download again",
        path.string(), std::filesystem::read_symlink(path, ignored).string());
  }
  throw data_error("{}: cannot be opened: {}", path.string(), reason(error_number));
}

}  // namespace

MappedFile MappedFile::open(const std::filesystem::path& path) {
  MappedFile file;
  file.path_ = path;
  // Without O_NONBLOCK, opening a pipe of that name would wait for its writer for ever.
  file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.descriptor_ < 0) throw_cannot_open(path, errno);

  struct stat status = {};
  if (::fstat(file.descriptor_, &status) != 0) throw_cannot_open(path, errno);
  if (S_ISDIR(status.st_mode)) {
    throw data_error("{}: is a folder, a file is expected", path.string());
  }
  if (!S_ISREG(status.st_mode)) {
    throw data_error("{}: is a device or a pipe, a regular file is expected", path.string());
  }
  file.size_ = static_cast<std::uint64_t>(status.st_size);
  if (file.size_ == 0) return file;  // an empty range cannot be mapped

  void* mapping = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, file.descriptor_, 0);
  if (mapping == MAP_FAILED) {
    throw runtime_failure("{}: {} bytes cannot be mapped: {}", path.string(), file.size_,
                          reason(errno));
  }
  file.mapping_ = mapping;
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(mapping_, other.mapping_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::span<const std::byte> MappedFile::bytes() const {
  return {static_cast<const std::byte*>(mapping_), static_cast<std::size_t>(size_)};
}

void MappedFile::will_read(std::uint64_t offset, std::uint64_t bytes) const {
  static_cast<void>(::posix_fadvise(descriptor_, static_cast<off_t>(offset),
                                    static_cast<off_t>(bytes), POSIX_FADV_WILLNEED));
}

void MappedFile::read(std::uint64_t offset, std::span<std::byte> destination) const {
  std::size_t done = 0;
  while (done < destination.size()) {
    const ssize_t n = ::pread(descriptor_, destination.data() + done, destination.size() - done,
                              static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw runtime_failure("{}: reading {} bytes at byte {} failed: {}", path_.string(),
                            destination.size() - done, offset + done, reason(errno));
    }
    if (n == 0) {
      struct stat now = {};
      (void)::fstat(descriptor_, &now);  // only for the message
      throw runtime_failure(
          "{}: has {} bytes where data up to byte {} is expected; it had {} when "
          "it was opened, something shortened it meanwhile",
          path_.string(), now.st_size, offset + destination.size(), size_);
    }
    done += static_cast<std::size_t>(n);
  }
}

}  // namespace fut
