// open, fstat and pread with words for what went wrong.
#include "loader/file_reader.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
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

FileReader FileReader::open(const std::filesystem::path& path) {
  FileReader file;
  file.path_ = path;
  // Without O_NONBLOCK, opening a pipe of that name would wait for its writer for ever.
  file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.descriptor_ < 0) throw_cannot_open(path, errno);

  if (::fstat(file.descriptor_, &file.opened_) != 0) throw_cannot_open(path, errno);
  if (S_ISDIR(file.opened_.st_mode)) {
    throw data_error("{}: is a folder, a file is expected", path.string());
  }
  if (!S_ISREG(file.opened_.st_mode)) {
    throw data_error("{}: is a device or a pipe, a regular file is expected", path.string());
  }
  return file;
}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      opened_(std::exchange(other.opened_, {})) {}

FileReader& FileReader::operator=(FileReader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(opened_, other.opened_);
  return *this;
}

FileReader::~FileReader() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FileReader::will_read(std::uint64_t offset, std::uint64_t bytes) const {
  static_cast<void>(::posix_fadvise(descriptor_, static_cast<off_t>(offset),
                                    static_cast<off_t>(bytes), POSIX_FADV_WILLNEED));
}

void FileReader::read(std::uint64_t offset, std::span<std::byte> destination) const {
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
          path_.string(), now.st_size, offset + destination.size(), size());
    }
    done += static_cast<std::size_t>(n);
  }
}

void FileReader::require_unchanged() const {
  struct stat now = {};
  if (::fstat(descriptor_, &now) != 0) {
    throw runtime_failure("{}: cannot be looked at: {}", path_.string(), reason(errno));
  }
  if (now.st_size == opened_.st_size && now.st_mtim.tv_sec == opened_.st_mtim.tv_sec &&
      now.st_mtim.tv_nsec == opened_.st_mtim.tv_nsec) {
    return;
  }
  throw runtime_failure(
      "{}: was written to while it was read ({} bytes then, {} now), so that parts of it may not "
      "belong together; wait until it is complete and try again",
      path_.string(), size(), now.st_size);
}

}  // namespace fut
