// See the header.
#include "apps/output.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/signals.h"
#include "kernels/error.h"

namespace fut::app {

Output::Output(const std::string& path) : name_(path), is_file_(true) {
  constexpr mode_t kMode = 0666;  // less the user's umask
  do {
    throw_if_interrupted();  // a pipe that nobody reads from is waited for here
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, kMode);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) fail("cannot be opened for writing", errno);
}

Output::~Output() {
  if (is_file_ && descriptor_ >= 0) ::close(descriptor_);
}

void Output::fail(std::string_view act, int error) const {
  if (error == EPIPE) {
    throw runtime_failure("{}: its reader went away before everything was written", name_);
  }
  throw runtime_failure("{}: {}: {}", name_, act, std::strerror(error));
}

void Output::empty_file() {
  if (started_ || !is_file_) return;
  started_ = true;
  struct stat status = {};
  // A device or a pipe has no length.
  if (::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode) &&
      ::ftruncate(descriptor_, 0) != 0) {
    fail("cannot be emptied", errno);
  }
}

void Output::write(std::string_view bytes) {
  empty_file();
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EINTR) {
      throw_if_interrupted();      // a reader that has stopped reading must not hold us for ever
    } else if (errno == EAGAIN) {  // somebody made the terminal or pipe non-blocking
      pollfd wait = {descriptor_, POLLOUT, 0};
      ::poll(&wait, 1, -1);
      throw_if_interrupted();
    } else {
      fail("writing failed, the result is lost", errno);
    }
  }
}

void Output::finish() {
  empty_file();
  if (is_file_) {
    const int descriptor = descriptor_;
    descriptor_ = -1;
    if (::close(descriptor) != 0) fail("closing failed, the result may be lost", errno);
    return;
  }
  // Standard output itself stays open; closing a copy reports what a network file system held back.
  const int copy = ::dup(descriptor_);
  if (copy >= 0 && ::close(copy) != 0) fail("closing failed, the result may be lost", errno);
}

bool Output::is_terminal() const {
  return ::isatty(descriptor_) == 1;
}

void guard_standard_streams() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() takes the lowest free number, which is this one. Standard output gets a descriptor
    // that cannot be written, so that a result is not lost without a word.
    const int mode = descriptor == 2 ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", mode) != descriptor) return;
  }
}

}  // namespace fut::app
