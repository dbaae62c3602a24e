// See the header.
#include "apps/line_reader.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <unistd.h>

#include "apps/signals.h"
#include "apps/text_input.h"
#include "kernels/error.h"

namespace fut::app {
LineReader::LineReader() : is_terminal_(::isatty(STDIN_FILENO) == 1) {}

LineReader::Outcome LineReader::next(std::string& line) {
  // A terminal hands over one line at a time; anything else is read byte by byte.
  std::array<char, 4096> block;
  const std::size_t block_bytes = is_terminal_ ? block.size() : 1;
  while (!ended_) {
    if (pending_signal() != 0) return Outcome::Interrupted;
    if (!wait_for_input(STDIN_FILENO)) continue;
    const ssize_t count = ::read(STDIN_FILENO, block.data(), block_bytes);
    if (count < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      if (errno != EIO) {  // EIO: the terminal is gone
        throw runtime_failure("standard input: cannot be read: {}", std::strerror(errno));
      }
    }
    if (count <= 0) {
      ended_ = true;
      break;
    }
    partial_.append(block.data(), static_cast<std::size_t>(count));
    if (partial_.back() != '\n') continue;
    partial_.pop_back();
    line = std::move(partial_);
    partial_.clear();
    return Outcome::Line;
  }
  if (partial_.empty()) return Outcome::End;
  line = std::move(partial_);
  partial_.clear();
  return Outcome::Line;
}

}  // namespace fut::app
