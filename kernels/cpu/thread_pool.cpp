// How the pool hands out pieces, and how long its threads stay awake for the next loop.
#include "kernels/cpu/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <sched.h>
#include <system_error>

#include "kernels/error.h"

namespace fut::cpu {
namespace {

// Below this many multiply-adds a loop takes about as long as telling another core about it.
constexpr std::int64_t kInlineWork = 32768;
// A piece should outweigh the cost of claiming it.
constexpr std::int64_t kPieceWork = 8192;
// More pieces than threads, so that a thread which the system took away holds up one piece only.
constexpr std::int64_t kPiecesPerThread = 8;
// A thread with nothing to do stays awake for the gap between two ops of a decode step and no
// longer; it yields while it waits, so that where cores are short the other side gets them.
constexpr std::chrono::microseconds kStayAwake{50};
constexpr int kPausesBeforeYield = 64;

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Calls `done` again and again: first at short intervals, then with a yield between. False when
// the time is over.
template <class Done>
bool spin_until(const Done& done) {
  for (int i = 0; i < kPausesBeforeYield; ++i) {
    if (done()) return true;
    pause_briefly();
  }
  const auto deadline = std::chrono::steady_clock::now() + kStayAwake;
  while (std::chrono::steady_clock::now() < deadline) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return done();
}

constexpr std::uint64_t kPieceMask = 0xFFFFFFFFU;

std::uint64_t make_ticket(std::uint64_t previous, std::int64_t num_pieces) {
  return (((previous >> 32) + 1) << 32) | static_cast<std::uint64_t>(num_pieces);
}

}  // namespace

int usable_cores() {
#if defined(__linux__)
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) == 0)
    return std::max(1, CPU_COUNT(&allowed));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int num_threads) {
  const int wanted = num_threads > 0 ? num_threads : usable_cores();
  workers_.reserve(static_cast<std::size_t>(wanted - 1));
  for (int thread = 1; thread < wanted; ++thread) {
    try {
      workers_.emplace_back([this, thread] { work_until_stopped(thread); });
    } catch (const std::system_error& e) {
      stop();
      throw capacity_error("could not start thread {} of {}: {}; ask for fewer threads with -t",
                           thread + 1, wanted, e.what());
    }
  }
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() noexcept {
  stopping_.store(true);
  ticket_.store(make_ticket(ticket_.load(), 0));
  ticket_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

bool ThreadPool::runs_inline(std::int64_t count, std::int64_t work) {
  return count == 1 || count * work < kInlineWork;
}

void ThreadPool::run_shared(std::int64_t count, std::int64_t work, Function function,
                            const void* body) {
  const std::int64_t by_work = std::max<std::int64_t>(1, count * work / kPieceWork);
  const std::int64_t num_pieces = std::min({count, by_work, kPiecesPerThread * num_threads()});
  loop_ = {function, body, count, num_pieces};
  unfinished_.store(static_cast<std::uint32_t>(num_pieces), std::memory_order_relaxed);
  // Sequentially consistent, like the increment in sleep_until_ticket_changes: either the sleeper
  // sees the new ticket, or this thread sees the sleeper.
  ticket_.store(make_ticket(ticket_.load(std::memory_order_relaxed), num_pieces));
  if (sleepers_.load() > 0) ticket_.notify_all();

  while (run_one_piece(0)) {
  }
  wait_for_workers();
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

bool ThreadPool::run_one_piece(int thread) {
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  do {
    if ((ticket & kPieceMask) == 0) return false;
  } while (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel));

  const std::int64_t piece = loop_.num_pieces - static_cast<std::int64_t>(ticket & kPieceMask);
  const std::int64_t begin = piece * loop_.count / loop_.num_pieces;
  const std::int64_t end = (piece + 1) * loop_.count / loop_.num_pieces;
  try {
    loop_.function(loop_.body, begin, end, thread);
  } catch (...) {
    // Only the first failure is kept; the store below publishes it.
    if (!failed_.exchange(true)) failure_ = std::current_exception();
  }
  if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
  return true;
}

void ThreadPool::wait_for_workers() {
  const auto all_done = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
  if (spin_until(all_done)) return;
  for (std::uint32_t left = unfinished_.load(std::memory_order_acquire); left != 0;
       left = unfinished_.load(std::memory_order_acquire)) {
    unfinished_.wait(left, std::memory_order_acquire);
  }
}

void ThreadPool::work_until_stopped(int thread) {
  while (!stopping_.load(std::memory_order_acquire)) {
    if (run_one_piece(thread)) continue;
    const std::uint64_t seen = ticket_.load(std::memory_order_acquire);
    if ((seen & kPieceMask) != 0 || stopping_.load(std::memory_order_acquire)) continue;
    const auto changed = [this, seen] { return ticket_.load(std::memory_order_relaxed) != seen; };
    if (!spin_until(changed)) sleep_until_ticket_changes(seen);
  }
}

void ThreadPool::sleep_until_ticket_changes(std::uint64_t seen) {
  sleepers_.fetch_add(1);
  ticket_.wait(seen);
  sleepers_.fetch_sub(1);
}

}  // namespace fut::cpu
