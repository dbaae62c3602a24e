// See the header.
#include "apps/reply_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "apps/json_input.h"
#include "apps/logging.h"
#include "apps/reporter.h"
#include "apps/signals.h"
#include "apps/text_input.h"
#include "apps/words.h"
#include "kernels/error.h"
#include "tokenizer/sha256.h"

namespace fut::app {
namespace {

// A line of such a file; discarded where it is none.
struct ReplyLine {
  bool is_reply = false;
  std::size_t index = 0;
  std::string key;
  int error_code = 0;
};

ReplyLine parse_line(std::string_view line) {
  Json object;
  try {
    object = parse_json_input(line, "a reply");
  } catch (const Error&) {
    return {};
  }
  if (!object.is_object()) return {};
  const auto index = object.find("index");
  const auto key = object.find("key");
  if (index == object.end() || !index->is_number_unsigned() || key == object.end() ||
      !key->is_string()) {
    return {};
  }
  ReplyLine reply{true, index->get<std::size_t>(), key->get<std::string>(), 0};
  const Json::json_pointer code("/error/code");
  if (object.contains(code) && object[code].is_number_integer()) {
    reply.error_code = object[code].get<int>();
  }
  return reply;
}

}  // namespace

std::string row_key(std::string_view settings, std::string_view row) {
  constexpr std::size_t kDigits = 16;
  return sha256_hex(fmt::format("{}\n{}", settings, row)).substr(0, kDigits);
}

ReplyFile::ReplyFile(const std::string& path, Existing existing,
                     const std::vector<std::string>& keys)
    : path_(path) {
  do {
    throw_if_interrupted();         // a pipe that nobody reads from is waited for here
    constexpr mode_t kMode = 0666;  // less the user's umask
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, kMode);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) fail("cannot be opened for writing", errno);
  try {
    struct stat status = {};
    is_regular_ = ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
    if (!is_regular_ && existing == Existing::Resume) {
      throw usage_error(
          "--output-file {}: not a file that could be gone on with; leave --resume out", path_);
    }
    if (is_regular_) {
      lock();
      look_at(status.st_size == 0 ? std::string() : read_whole_file(path), existing, keys);
    }
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

ReplyFile::~ReplyFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void ReplyFile::fail(std::string_view act, int error) const {
  throw runtime_failure("{}: {}: {}", path_, act, std::strerror(error));
}

void ReplyFile::lock() {
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  throw runtime_failure("{}: another fut run writes it now; wait for that, or give another file",
                        path_);
}

void ReplyFile::look_at(std::string_view content, Existing existing,
                        const std::vector<std::string>& keys) {
  if (existing == Existing::Overwrite) {
    is_stale_ = true;
    return;
  }
  for (std::size_t end = content.find('\n', bytes_); end != content.npos;
       end = content.find('\n', bytes_)) {
    const ReplyLine line = parse_line(content.substr(bytes_, end - bytes_));
    if (!line.is_reply || line.index != num_kept_) break;
    if (existing == Existing::Resume && num_kept_ == keys.size()) {
      throw data_error(
          "{}: holds more replies than the {} of the input; resume with the whole input, or begin "
          "anew with --overwrite",
          path_, counted(keys.size(), "row"));
    }
    const bool is_ours = num_kept_ < keys.size() && line.key == keys[num_kept_];
    if (existing == Existing::Resume && !is_ours) {
      throw data_error(
          "{}: line {} is the reply to another row, or was made by another model or with other "
          "settings; resume with those, or begin anew with --overwrite",
          path_, num_kept_ + 1);
    }
    if (first_error_code_ == 0) first_error_code_ = line.error_code;
    ++num_kept_;
    bytes_ = end + 1;
  }
  if (existing == Existing::Refuse && !content.empty()) {
    throw usage_error(
        "--output-file {}: is not empty, it holds the replies to {} of {}; --resume goes on after "
        "them, --overwrite begins anew",
        path_, num_kept_, counted(keys.size(), "row"));
  }
  if (bytes_ == content.size()) return;
  if (content.find('\n', bytes_) != content.npos) {
    throw data_error(
        "{}: line {} is no reply of fut run -i: not a file to go on with; give another one, or "
        "begin "
        "anew with --overwrite",
        path_, num_kept_ + 1);
  }
  log_info("{}: the beginning of line {} is removed, which was cut off", path_, num_kept_ + 1);
  cut(bytes_);
}

void ReplyFile::cut(std::uint64_t bytes) {
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) fail("cannot be shortened", errno);
}

void ReplyFile::write(std::string_view line) {
  if (std::exchange(is_stale_, false)) cut(0);
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = is_regular_
                                ? ::pwrite(descriptor_, rest.data(), rest.size(),
                                           static_cast<off_t>(bytes_ + line.size() - rest.size()))
                                : ::write(descriptor_, rest.data(), rest.size());
    if (written >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EINTR) {
      if (!is_regular_) throw_if_interrupted();  // a file takes whole lines
    } else {
      const int error = errno;
      if (is_regular_) static_cast<void>(::ftruncate(descriptor_, static_cast<off_t>(bytes_)));
      fail("writing failed, the reply is lost", error);
    }
  }
  bytes_ += line.size();
}

void ReplyFile::finish() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) fail("closing failed, replies may be lost", errno);
}

}  // namespace fut::app
