// System calls, and words for what went wrong with them.
#include "loader/partial_folder.h"

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <fmt/format.h>
#include <random>
#include <string>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "kernels/error.h"

namespace fut {
namespace {

// Both are followed by the process and 8 hexadecimal digits.
constexpr std::string_view kPartial = ".partial-";
constexpr std::string_view kReplaced = ".replaced-";

std::string reason(int error_number) {
  return std::generic_category().message(error_number);
}

std::string_view next_step(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return "make room, or choose a folder on another disk (-o, --cache-dir)";
    case EFBIG:
      return "files of this size are not allowed here: raise the limit (ulimit -f), or choose a "
             "folder on another disk (-o, --cache-dir)";
    case EACCES:
    case EPERM:
    case EROFS:
      return "choose a folder that can be written (-o, --cache-dir)";
    default:
      return "check the disk, or choose another folder (-o, --cache-dir)";
  }
}

// Bytes that an ordinary user can still write where `path` lies; 0 where nobody says.
std::uint64_t free_bytes(const std::filesystem::path& path) {
  struct statvfs status = {};
  if (::statvfs(path.c_str(), &status) != 0) return 0;
  return std::uint64_t{status.f_bavail} * status.f_frsize;
}

// 0 or an error number. A signal is no reason to give up.
int fsync_whole(int descriptor) {
  while (::fsync(descriptor) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

// A folder's entries are on the disk only after this. Some file systems have no such call.
void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // a folder that can be written and not read
  const int error_number = fsync_whole(descriptor);
  ::close(descriptor);
  if (error_number == 0 || error_number == EINVAL || error_number == EROFS) return;
  throw runtime_failure("{}: cannot be brought onto the disk: {}; {}", folder.string(),
                        reason(error_number), next_step(error_number));
}

// The lock of a folder, or -1 where another process has it or the folder cannot be opened.
int lock_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor >= 0 && ::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return descriptor;
  if (descriptor >= 0) ::close(descriptor);
  return -1;
}

std::string own_suffix(std::string_view kind, unsigned random) {
  return fmt::format("{}{}-{:08x}", kind, ::getpid(), random);
}

// The process in "PID-RANDOM" as own_suffix writes it, and nothing before or after it; 0: not ours.
pid_t process_of(std::string_view pid_and_random) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  constexpr std::size_t kNumDigits = 8;
  pid_t pid = 0;
  const char* end = pid_and_random.data() + pid_and_random.size();
  const auto parsed = std::from_chars(pid_and_random.data(), end, pid);
  const std::string_view rest(parsed.ptr, static_cast<std::size_t>(end - parsed.ptr));
  const bool is_ours = parsed.ec == std::errc() && pid > 0 && rest.size() == 1 + kNumDigits &&
                       rest.front() == '-' &&
                       rest.find_first_not_of(kDigits, 1) == std::string_view::npos;
  return is_ours ? pid : 0;
}

// Whether a folder's process is gone: its number stands for none here, and (the process may be one
// of another container) nobody holds the lock.
bool is_abandoned(const std::filesystem::path& folder, std::string_view pid_and_random) {
  const pid_t pid = process_of(pid_and_random);
  if (pid == 0 || ::kill(pid, 0) == 0 || errno != ESRCH) return false;
  const int lock = lock_folder(folder);
  if (lock < 0) return false;
  ::close(lock);
  return true;
}

// The folders beside `final_path` that dead processes left. Nothing depends on whether they can be
// seen: where not, there are none.
std::vector<std::filesystem::path> list_abandoned(const std::filesystem::path& final_path,
                                                  std::string_view kind) {
  const std::string prefix = final_path.filename().string() + std::string(kind);
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(final_path.parent_path(), error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    if (is_abandoned(it->path(), std::string_view(name).substr(prefix.size()))) {
      found.push_back(it->path());
    }
  }
  return found;
}

// Swaps two folders' names. Returns 0 or an error number, and has changed nothing then.
int exchange(const std::filesystem::path& partial, const std::filesystem::path& final_path) {
  const int result =
      ::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE);
  if (result == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  return exchange_by_renaming(partial, final_path);
}

}  // namespace

// ---- files --------------------------------------------------------------------------------------

OutputFile::OutputFile(const std::filesystem::path& path, std::uint64_t expected_bytes)
    : path_(path), expected_bytes_(expected_bytes) {
  constexpr mode_t kMode = 0666;  // less the user's mask
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  if (descriptor_ < 0) fail("cannot be made", 0, errno);
  if (expected_bytes == 0) return;
  const auto size = static_cast<off_t>(expected_bytes);
  int result = 0;
  do {
    result = ::fallocate(descriptor_, 0, 0, size);
  } while (result != 0 && errno == EINTR);
  const int error_number = result == 0 ? 0 : errno;
  if (error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG) {
    ::close(descriptor_);
    fail("cannot be given its size", expected_bytes, error_number);
  }
}

OutputFile::OutputFile(const std::filesystem::path& path, std::uint64_t expected_bytes,
                       std::uint64_t written)
    : path_(path), expected_bytes_(expected_bytes), written_(written) {
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail("cannot be opened", 0, errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::fail(const char* what, std::uint64_t bytes, int error_number) const {
  if (bytes == 0) {
    throw runtime_failure("{}: {}: {}; {}", path_.string(), what, reason(error_number),
                          next_step(error_number));
  }
  throw runtime_failure(
      "{}: {}, {} bytes after {}: {}; {} bytes are needed in all, {} are free "
      "there; {}",
      path_.string(), what, bytes, written_, reason(error_number), expected_bytes_,
      free_bytes(path_.parent_path()), next_step(error_number));
}

void OutputFile::write(std::span<const std::byte> bytes) {
  write_at(written_, bytes);
  written_ += bytes.size();
}

void OutputFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("cannot be written", bytes.size(), n < 0 ? errno : ENOSPC);
    offset += static_cast<std::uint64_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void OutputFile::close() {
  if (const int error_number = fsync_whole(descriptor_); error_number != 0) {
    fail("cannot be brought onto the disk", 0, error_number);
  }
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("cannot be closed", 0, errno);
}

// ---- the folder ---------------------------------------------------------------------------------

std::filesystem::path resolved_target(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, error);
  return error ? path : resolved;
}

int exchange_by_renaming(const std::filesystem::path& partial,
                         const std::filesystem::path& final_path) {
  std::filesystem::path aside = final_path;
  aside += own_suffix(kReplaced, std::random_device()());
  // Held from before the folder has a name that restore_replaced() looks for.
  const int lock = lock_folder(final_path);
  int error_number = ::rename(final_path.c_str(), aside.c_str()) == 0 ? 0 : errno;
  if (error_number == 0) {
    error_number = ::rename(partial.c_str(), final_path.c_str()) == 0 ? 0 : errno;
    (void)::rename(aside.c_str(), error_number == 0 ? partial.c_str() : final_path.c_str());
  }
  if (lock >= 0) ::close(lock);
  return error_number;
}

void restore_replaced(const std::filesystem::path& final_path) {
  std::error_code error;
  const auto status = std::filesystem::symlink_status(final_path, error);
  if (status.type() != std::filesystem::file_type::not_found) return;
  const std::vector<std::filesystem::path> replaced = list_abandoned(final_path, kReplaced);
  // An empty folder that was made meanwhile may go; what cannot be renamed stays where it is.
  if (!replaced.empty()) (void)::rename(replaced.front().c_str(), final_path.c_str());
}

PartialFolder::PartialFolder(const std::filesystem::path& final_path, const Serves& serves)
    : final_path_(final_path) {
  std::error_code error;
  std::filesystem::create_directories(final_path.parent_path(), error);
  if (error) {
    throw runtime_failure("{}: the folder cannot be made: {}; {}",
                          final_path.parent_path().string(), error.message(),
                          next_step(error.value()));
  }
  for (const std::filesystem::path& abandoned : list_abandoned(final_path, kPartial)) {
    if (was_taken_up_ || !serves || !serves(abandoned)) {
      std::filesystem::remove_all(abandoned, error);
    } else {
      was_taken_up_ = take_up(abandoned);
    }
  }
  if (!was_taken_up_) make();
}

bool PartialFolder::take_up(const std::filesystem::path& abandoned) {
  const int lock = lock_folder(abandoned);
  if (lock < 0) return false;
  std::filesystem::path own = final_path_;
  own += own_suffix(kPartial, std::random_device()());
  if (::rename(abandoned.c_str(), own.c_str()) != 0) {
    ::close(lock);
    return false;
  }
  lock_ = lock;
  path_ = own;
  return true;
}

void PartialFolder::make() {
  std::error_code error;
  std::random_device random;
  do {
    path_ = final_path_;
    path_ += own_suffix(kPartial, random());
    constexpr mode_t kMode = 0777;  // less the user's mask
    error = ::mkdir(path_.c_str(), kMode) == 0 ? std::error_code()
                                               : std::error_code(errno, std::generic_category());
  } while (error.value() == EEXIST);
  if (error) {
    throw runtime_failure("{}: the folder cannot be made: {}; {}", path_.string(), error.message(),
                          next_step(error.value()));
  }
  lock_ = lock_folder(path_);
}

PartialFolder::~PartialFolder() {
  std::error_code ignored;
  if (!path_.empty() && !is_kept_) std::filesystem::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

void PartialFolder::publish(bool replace) {
  sync_folder(path_);
  int error_number = ::rename(path_.c_str(), final_path_.c_str()) == 0 ? 0 : errno;
  const bool is_taken = error_number == ENOTEMPTY || error_number == EEXIST;
  if (is_taken && replace) error_number = exchange(path_, final_path_);
  if (error_number != 0) {
    throw runtime_failure("{}: is complete and cannot be renamed to {}: {}; {}", path_.string(),
                          final_path_.string(), reason(error_number),
                          is_taken && !replace ? "another process has made that folder meanwhile"
                                               : next_step(error_number));
  }
  std::error_code ignored;  // what is left of the old one is removed by the next writer
  if (is_taken) std::filesystem::remove_all(path_, ignored);
  path_.clear();
  sync_folder(final_path_.parent_path());
}

}  // namespace fut
