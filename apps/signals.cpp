// See the header.
#include "apps/signals.h"

#include <csignal>

namespace fut::app {
namespace {

std::atomic<bool> stop_requested{false};
std::atomic<int> last_signal{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "a signal handler may touch lock-free atomics only");

extern "C" void remember_signal(int signal) {
  last_signal.store(signal);
  stop_requested.store(true);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = remember_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // no SA_RESTART: a blocked read has to return
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // Under nohup, which ignores it for us, a hangup is no reason to stop.
  struct sigaction inherited = {};
  if (sigaction(SIGHUP, nullptr, &inherited) == 0 && inherited.sa_handler != SIG_IGN) {
    sigaction(SIGHUP, &action, nullptr);
  }
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);
}

const std::atomic<bool>& stop_flag() {
  return stop_requested;
}

int pending_signal() {
  return stop_requested.load() ? last_signal.load() : 0;
}

int take_signal() {
  if (!stop_requested.exchange(false)) return 0;
  return last_signal.load();
}

void throw_if_interrupted() {
  if (const int signal = pending_signal(); signal != 0) throw Interrupted(signal);
}

int exit_code_of_signal(int signal) {
  return 128 + signal;
}

}  // namespace fut::app
