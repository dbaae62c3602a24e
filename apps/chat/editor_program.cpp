// See the header.
#include "apps/chat/editor_program.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/signals.h"
#include "apps/text_input.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

std::string editor() {
  for (const char* name : {"VISUAL", "EDITOR"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  throw usage_error("neither VISUAL nor EDITOR names an editor; /edit TEXT works without one");
}

// A file that is gone when this is.
class PrivateFile {
 public:
  explicit PrivateFile(const std::string& text)
      : path_((std::filesystem::temp_directory_path() / "fut-turn-XXXXXX").string()) {
    const int descriptor = ::mkstemp(path_.data());
    if (descriptor < 0) {
      throw runtime_failure("{}: cannot be made: {}", path_, std::strerror(errno));
    }
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (::close(descriptor) != 0 || written != static_cast<ssize_t>(text.size())) {
      ::unlink(path_.c_str());
      throw runtime_failure("{}: cannot be written", path_);
    }
  }
  PrivateFile(const PrivateFile&) = delete;
  PrivateFile& operator=(const PrivateFile&) = delete;
  ~PrivateFile() { ::unlink(path_.c_str()); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

std::string edit_text(const std::string& text) {
  const std::string program = editor();
  const PrivateFile file(text + "\n");
  const pid_t child = ::fork();
  if (child < 0) throw runtime_failure("no process for the editor: {}", std::strerror(errno));
  if (child == 0) {
    for (const int signal : {SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_DFL);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);  // where the terminal is, wherever replies go
    // The shell takes an editor with arguments apart; the file's name is a word of its own.
    ::execl("/bin/sh", "sh", "-c", (program + " \"$1\"").c_str(), "sh", file.path().c_str(),
            static_cast<char*>(nullptr));
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (pending_signal() == SIGINT) (void)take_signal();  // Ctrl-C was for the editor
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw runtime_failure("the editor '{}' failed; the turn stays as it was", program);
  }
  std::string changed = read_whole_file(file.path());
  drop_final_newline(changed);
  return changed;
}

}  // namespace fut::app
