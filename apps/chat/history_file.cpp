// See the header.
#include "apps/chat/history_file.h"

#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fut::app {
namespace fs = std::filesystem;
namespace {

constexpr mode_t kPrivate = 0600;

std::string encoded(const std::string& entry) {
  std::string line;
  for (const char c : entry) {
    if (c == '\\')
      line += "\\\\";
    else if (c == '\n')
      line += "\\n";
    else
      line += c;
  }
  return line + '\n';
}

std::string decoded(const std::string& line) {
  std::string entry;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\\' && i + 1 < line.size()) {
      entry += line[++i] == 'n' ? '\n' : line[i];
    } else {
      entry += line[i];
    }
  }
  return entry;
}

bool write_all(int descriptor, const std::string& bytes) {
  // One write: entries of two chats do not mix.
  return ::write(descriptor, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
}

// The file, locked until it is closed; -1: it cannot be opened. One that is renamed over while this waits
// for the lock is opened anew, so that nobody writes to a file that has no name any more.
int open_locked(const fs::path& file, int flags) {
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    const int descriptor = ::open(file.c_str(), flags | O_CLOEXEC | O_NONBLOCK, kPrivate);
    if (descriptor < 0) return -1;
    struct stat opened = {}, named = {};
    const bool regular = ::fstat(descriptor, &opened) == 0 && S_ISREG(opened.st_mode);
    if (!regular || ::flock(descriptor, LOCK_EX) != 0) return descriptor;  // without a lock, then
    if (::stat(file.c_str(), &named) == 0 && named.st_ino == opened.st_ino &&
        named.st_dev == opened.st_dev) {
      return descriptor;
    }
    ::close(descriptor);
  }
  return -1;
}

void make_private(int descriptor) {
  struct stat status = {};
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) {
    (void)::fchmod(descriptor, kPrivate);
  }
}

// Written aside and renamed, so that a reader sees the old file or the new one.
void rewrite(const fs::path& file, const std::vector<std::string>& entries) {
  const fs::path aside = file.string() + "." + std::to_string(::getpid());
  const int descriptor = ::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kPrivate);
  if (descriptor < 0) return;
  std::string bytes;
  for (const std::string& entry : entries) bytes += encoded(entry);
  const bool written = write_all(descriptor, bytes);
  const bool closed = ::close(descriptor) == 0;
  std::error_code error;
  if (written && closed) fs::rename(aside, file, error);
  if (!written || !closed || error) fs::remove(aside, error);
}

}  // namespace

fs::path default_history_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return fs::path(state) / "fut/chat_history";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return {};
  return fs::path(home) / ".local/state/fut/chat_history";
}

std::vector<std::string> read_history(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return {};
  const int lock = open_locked(file, O_RDONLY);
  if (lock < 0) return {};
  std::ifstream in(file, std::ios::binary);
  std::vector<std::string> entries;
  for (std::string line; std::getline(in, line);) entries.push_back(decoded(line));
  constexpr std::size_t kSlack = 2;
  const bool grown = entries.size() > kSlack * kHistoryEntries;
  if (entries.size() > kHistoryEntries) {
    entries.erase(entries.begin(), entries.end() - static_cast<std::ptrdiff_t>(kHistoryEntries));
  }
  if (grown) rewrite(file, entries);
  ::close(lock);
  return entries;
}

bool append_history(const fs::path& file, const std::string& entry) {
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  const int descriptor = open_locked(file, O_WRONLY | O_CREAT | O_APPEND);
  if (descriptor < 0) return false;
  make_private(descriptor);
  const bool written = write_all(descriptor, encoded(entry));
  return ::close(descriptor) == 0 && written;
}

}  // namespace fut::app
