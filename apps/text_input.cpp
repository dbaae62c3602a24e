// See the header.
#include "apps/text_input.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <optional>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/logging.h"
#include "apps/signals.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

// Closes the descriptor of a file at the end of a scope.
class Descriptor {
 public:
  explicit Descriptor(const std::string& path) {
    do {
      throw_if_interrupted();  // a pipe that nobody writes to is waited for here
      value_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    } while (value_ < 0 && errno == EINTR);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  [[nodiscard]] int value() const { return value_; }

 private:
  int value_ = -1;
};

Error too_long(std::string_view name, std::string_view size, std::uint64_t most_bytes,
               std::string_view reason) {
  return capacity_error("{}: {} bytes, and at most {} can fit{}", name, size, most_bytes, reason);
}

std::string read_descriptor(int descriptor, const std::string& name, std::uint64_t most_bytes,
                            std::string_view reason) {
  struct stat status = {};
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
      static_cast<std::uint64_t>(status.st_size) > most_bytes) {
    throw too_long(name, std::to_string(status.st_size), most_bytes, reason);
  }
  constexpr std::size_t kBlockBytes = 1 << 16;
  std::string text;
  std::array<char, kBlockBytes> block;
  for (;;) {
    throw_if_interrupted();
    if (!wait_for_input(descriptor)) continue;
    const ssize_t count = ::read(descriptor, block.data(), block.size());
    if (count == 0) return text;
    if (count > 0) {
      text.append(block.data(), static_cast<std::size_t>(count));
      if (text.size() > most_bytes) {
        throw too_long(name, fmt::format("more than {}", most_bytes), most_bytes, reason);
      }
    } else if (errno != EINTR && errno != EAGAIN) {
      throw data_error("{}: cannot be read: {}", name, std::strerror(errno));
    }
  }
}

std::string read_file(const std::string& path, std::uint64_t most_bytes, std::string_view reason) {
  const Descriptor file(path);
  if (file.value() < 0) throw data_error("{}: cannot be opened: {}", path, std::strerror(errno));
  return read_descriptor(file.value(), path, most_bytes, reason);
}

// The character that a letter after a backslash stands for.
std::optional<char> simple_escape(char letter) {
  switch (letter) {
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case '0':
      return '\0';
    case '\\':
    case '"':
    case '\'':
      return letter;
    default:
      return std::nullopt;
  }
}

}  // namespace

bool wait_for_input(int descriptor) {
  // A signal may arrive between looking at the flag and waiting, so no wait is long.
  constexpr int kWaitMs = 100;
  pollfd wait = {descriptor, POLLIN, 0};
  return ::poll(&wait, 1, kWaitMs) > 0;
}

std::string read_whole_file(const std::string& path) {
  return read_file(path, std::numeric_limits<std::uint64_t>::max(), "");
}

InputText read_text(const TextSource& source, bool escapes, std::uint64_t most_bytes,
                    std::string_view limit_reason) {
  if (source.file && *source.file != "-")
    return {read_file(*source.file, most_bytes, limit_reason), *source.file, true};
  if (source.text && *source.text != "-") {
    return {escapes ? interpret_escapes(*source.text) : *source.text, "-p", false};
  }
  const std::string name = "standard input";
  log_info("reading standard input to its end");
  InputText input{read_descriptor(STDIN_FILENO, name, most_bytes, limit_reason), name, true};
  if (input.text.empty() && !source.given()) {
    throw usage_error(
        "no text: neither -p nor -f is given and standard input is empty; try -p TEXT");
  }
  return input;
}

std::string interpret_escapes(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i + 1);
    if (text[i] != '\\' || rest.empty()) {
      result += text[i];
    } else if (const auto simple = simple_escape(rest[0])) {
      result += *simple;
      i += 1;
    } else {
      constexpr std::size_t kHexDigits = 2;
      unsigned value = 0;
      const bool long_enough = rest[0] == 'x' && rest.size() > kHexDigits;
      const char* end = long_enough ? rest.data() + 1 + kHexDigits : rest.data();
      if (long_enough && std::from_chars(rest.data() + 1, end, value, 16).ptr == end) {
        result += static_cast<char>(value);
        i += 1 + kHexDigits;
      } else {
        result += '\\';
      }
    }
  }
  return result;
}

void drop_final_newline(std::string& text) {
  if (!text.ends_with('\n')) return;
  text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
}

bool standard_input_is_terminal() {
  return ::isatty(STDIN_FILENO) == 1;
}

}  // namespace fut::app
