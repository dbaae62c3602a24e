// fork, exec and poll. See the header.
#include "tests/support/run_process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <stdexcept>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

extern char** environ;

namespace fut::test {
namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

struct Pipe {
  int read_end = -1;
  int write_end = -1;
};

Pipe make_pipe() {
  int ends[2];
  require(::pipe2(ends, O_CLOEXEC) == 0, "pipe2");
  return {ends[0], ends[1]};
}

struct Terminal {
  int master = -1;
  int slave = -1;
};

Terminal make_terminal() {
  Terminal t;
  t.master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  require(t.master >= 0 && ::grantpt(t.master) == 0 && ::unlockpt(t.master) == 0, "posix_openpt");
  std::array<char, 128> name;
  require(::ptsname_r(t.master, name.data(), name.size()) == 0, "ptsname_r");
  t.slave = ::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  require(t.slave >= 0, "open of the pseudo-terminal");
  return t;
}

bool is_inherited(std::string_view variable) {
  const std::string_view name = variable.substr(0, variable.find('='));
  for (const std::string_view other :
       {"NO_COLOR", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME",
        "XDG_STATE_HOME"}) {
    if (name == other) return false;
  }
  return !name.starts_with("FUT_");
}

std::vector<std::string> make_environment(
    const std::map<std::string, std::optional<std::string>>& changes) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    const bool changed = changes.contains(variable.substr(0, variable.find('=')));
    if (!changed && is_inherited(variable)) variables.push_back(variable);
  }
  for (const auto& [name, value] : changes) {
    if (value) variables.push_back(name + "=" + *value);
  }
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> list;
  list.reserve(words.size() + 1);
  for (std::string& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  return list;
}

void close_descriptor(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

}  // namespace

// What the child's descriptors 0, 1 and 2 become; -1: closed.
struct Process::ChildStreams {
  std::array<int, 3> descriptors = {-1, -1, -1};
  int terminal = -1;
  std::vector<int> to_close;  // of ours, once the child has them

  void give(std::size_t target, int descriptor) {
    descriptors[target] = descriptor;
    to_close.push_back(descriptor);
  }
};

// After fork: only calls that are safe there.
[[noreturn]] void Process::become(const ChildStreams& streams, const char* program,
                                  char* const* arguments, char* const* variables) {
  ::setsid();
  if (streams.terminal >= 0) ::ioctl(streams.terminal, TIOCSCTTY, 0);
  // Out of the way of 0 to 2 first, so that no dup2 overwrites one that is still needed.
  std::array<int, 3> copies = {-1, -1, -1};
  constexpr int kOutOfTheWay = 10;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const int descriptor = streams.descriptors[i];
    if (descriptor >= 0) copies[i] = ::fcntl(descriptor, F_DUPFD_CLOEXEC, kOutOfTheWay);
  }
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const int target = static_cast<int>(i);
    if (copies[i] >= 0) {
      ::dup2(copies[i], target);
    } else {
      ::close(target);
    }
  }
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_DFL);
  ::execve(program, arguments, variables);
  ::_exit(127);
}

Process::Process(const std::filesystem::path& program, ProcessOptions options)
    : options_(std::move(options)), start_(std::chrono::steady_clock::now()) {
  ::signal(SIGPIPE, SIG_IGN);  // a program that leaves early must not end the test
  ChildStreams child;
  connect_terminal(child);
  connect_input(child);
  connect_output(child);
  connect_error(child);
  std::vector<std::string> words = {program.string()};
  words.insert(words.end(), options_.arguments.begin(), options_.arguments.end());
  std::vector<std::string> variables = make_environment(options_.environment);
  const std::vector<char*> arguments = pointers(words);
  const std::vector<char*> environment = pointers(variables);
  pid_ = ::fork();
  require(pid_ >= 0, "fork");
  if (pid_ == 0) become(child, program.c_str(), arguments.data(), environment.data());
  for (int descriptor : child.to_close) ::close(descriptor);
  feed();
}

void Process::connect_terminal(ChildStreams& child) {
  if (options_.input_kind != ProcessOptions::Input::Terminal &&
      options_.output_kind != ProcessOptions::Output::Terminal && !options_.error_to_terminal) {
    return;
  }
  const Terminal terminal = make_terminal();
  terminal_ = {terminal.master, &result_.terminal, 0};
  require(::tcgetattr(terminal.master, &modes_before_) == 0, "tcgetattr");
  child.terminal = terminal.slave;
  child.to_close.push_back(terminal.slave);
}

void Process::connect_input(ChildStreams& child) {
  if (options_.input_kind == ProcessOptions::Input::Closed) return;
  if (options_.input_kind == ProcessOptions::Input::Terminal) {
    child.descriptors[0] = child.terminal;
    return;
  }
  const Pipe pipe = make_pipe();
  child.give(0, pipe.read_end);
  input_ = pipe.write_end;
  require(::fcntl(input_, F_SETFL, O_NONBLOCK) == 0, "fcntl");
}

void Process::connect_output(ChildStreams& child) {
  switch (options_.output_kind) {
    case ProcessOptions::Output::Closed:
      return;
    case ProcessOptions::Output::Terminal:
      child.descriptors[1] = child.terminal;
      return;
    case ProcessOptions::Output::File: {
      const int file = ::open(options_.output_path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
      require(file >= 0, "open of the output file");
      child.give(1, file);
      return;
    }
    case ProcessOptions::Output::Pipe: {
      const Pipe pipe = make_pipe();
      out_ = {pipe.read_end, &result_.out, 0};
      child.give(1, pipe.write_end);
    }
  }
}

void Process::connect_error(ChildStreams& child) {
  if (options_.error_to_terminal) {
    child.descriptors[2] = child.terminal;
    return;
  }
  const Pipe pipe = make_pipe();
  err_ = {pipe.read_end, &result_.err, 0};
  child.give(2, pipe.write_end);
}

Process::~Process() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  close_descriptor(input_);
  close_descriptor(out_.descriptor);
  close_descriptor(err_.descriptor);
  close_descriptor(terminal_.descriptor);
}

double Process::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

bool Process::out_of_time() const {
  return std::chrono::steady_clock::now() - start_ > options_.timeout;
}

// Writes as much of the input as the pipe takes; closes it after the last byte.
void Process::feed() {
  if (input_ < 0) return;
  while (fed_ < options_.input.size()) {
    const ssize_t count =
        ::write(input_, options_.input.data() + fed_, options_.input.size() - fed_);
    if (count < 0 && errno == EAGAIN) return;
    if (count < 0) break;  // nobody reads any more
    fed_ += static_cast<std::size_t>(count);
  }
  if (options_.input_kind == ProcessOptions::Input::Bytes) close_descriptor(input_);
}

void Process::write(std::string_view bytes) {
  if (options_.input_kind == ProcessOptions::Input::Terminal) {
    require(::write(terminal_.descriptor, bytes.data(), bytes.size()) ==
                static_cast<ssize_t>(bytes.size()),
            "write to the terminal");
    return;
  }
  options_.input += bytes;
  feed();
}

void Process::close_input() {
  options_.input_kind = ProcessOptions::Input::Bytes;
  feed();
}

void Process::resize(int columns, int rows) const {
  winsize size = {};
  size.ws_col = static_cast<unsigned short>(columns);
  size.ws_row = static_cast<unsigned short>(rows);
  require(::ioctl(terminal_.descriptor, TIOCSWINSZ, &size) == 0, "TIOCSWINSZ");
}

bool Process::terminal_is_as_before() const {
  termios now = {};
  require(::tcgetattr(terminal_.descriptor, &now) == 0, "tcgetattr");
  return now.c_iflag == modes_before_.c_iflag && now.c_oflag == modes_before_.c_oflag &&
         now.c_cflag == modes_before_.c_cflag && now.c_lflag == modes_before_.c_lflag &&
         std::equal(std::begin(now.c_cc), std::end(now.c_cc), std::begin(modes_before_.c_cc));
}

void Process::send_signal(int signal) const {
  require(pid_ > 0 && ::kill(pid_, signal) == 0, "kill");
}

void Process::read_stream(Stream& stream) {
  std::array<char, 1 << 16> block;
  const ssize_t count = ::read(stream.descriptor, block.data(), block.size());
  if (count <= 0) {  // EIO is how a terminal tells that nobody holds its other end
    close_descriptor(stream.descriptor);
    return;
  }
  const std::string_view bytes(block.data(), static_cast<std::size_t>(count));
  *stream.bytes += bytes;
  if (&stream == &out_) result_.chunks.push_back({seconds(), std::string(bytes)});
}

bool Process::pump(int wait_ms) {
  std::vector<pollfd> polled;
  std::vector<Stream*> streams;
  for (Stream* stream : {&out_, &err_, &terminal_}) {
    if (stream->descriptor < 0) continue;
    polled.push_back({stream->descriptor, POLLIN, 0});
    streams.push_back(stream);
  }
  if (streams.empty()) return false;
  if (input_ >= 0 && fed_ < options_.input.size()) polled.push_back({input_, POLLOUT, 0});
  if (::poll(polled.data(), polled.size(), wait_ms) <= 0) return true;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (polled[i].revents != 0) read_stream(*streams[i]);
  }
  feed();
  return true;
}

bool Process::wait_for(Stream& stream, std::string_view text) {
  constexpr int kWaitMs = 20;
  for (;;) {
    const std::size_t found =
        stream.bytes == nullptr ? std::string::npos : stream.bytes->find(text, stream.matched);
    if (found != std::string::npos) {
      stream.matched = found + text.size();
      return true;
    }
    if (stream.descriptor < 0 || out_of_time() || !pump(kWaitMs)) return false;
  }
}

bool Process::wait_for_output(std::string_view text) {
  return wait_for(out_, text);
}
bool Process::wait_for_error(std::string_view text) {
  return wait_for(err_, text);
}
bool Process::wait_for_terminal(std::string_view text) {
  return wait_for(terminal_, text);
}

ProcessResult Process::finish() {
  constexpr int kWaitMs = 20;
  int status = 0;
  rusage usage = {};
  for (;;) {
    const bool reading = pump(kWaitMs);
    const bool ended = ::wait4(pid_, &status, WNOHANG, &usage) == pid_;
    if (ended) break;
    if (out_of_time() && !result_.timed_out) {
      result_.timed_out = true;
      ::kill(pid_, SIGKILL);
    }
    if (!reading) ::usleep(kWaitMs * 1000);
  }
  pid_ = -1;
  result_.seconds = seconds();
  // What is still in the pipes. A terminal has no end while we hold it; what is there is there now.
  while (pump(0)) {
    const bool pipes_open = out_.descriptor >= 0 || err_.descriptor >= 0;
    if (!pipes_open) break;
  }
  if (terminal_.descriptor >= 0) pump(kWaitMs);
  result_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  result_.max_memory_kib = usage.ru_maxrss;
  return std::move(result_);
}

ProcessResult run_process(const std::filesystem::path& program, const ProcessOptions& options) {
  return Process(program, options).finish();
}

}  // namespace fut::test
