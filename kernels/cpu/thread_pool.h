// A few threads that share the iterations of one loop at a time. Not a task system: no queue, no
// futures, no nesting. Made for loops of some microseconds, sixty of them for a token.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <type_traits>
#include <vector>

namespace fut::cpu {

// How many cores this process may run on (its affinity mask), at least 1.
[[nodiscard]] int usable_cores();

class ThreadPool {
 public:
  // num_threads counts the calling thread; 0: usable_cores(). Throws
  // Capacity where the system gives no more threads.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end, thread) for pieces of [0, count) that cover it exactly once, `thread` in
  // [0, num_threads). `work` is the cost of one iteration in multiply-adds: a loop too small to be
  // worth waking anyone runs on the caller, by its size alone. Returns when all is done; an
  // exception of a body is thrown here, after the others have ended. One caller at a time.
  template <class Body>
  void parallel_for(std::int64_t count, std::int64_t work, const Body& body) {
    static_assert(std::is_invocable_v<const Body&, std::int64_t, std::int64_t, int>,
                  "body takes (begin, end, thread)");
    if (count <= 0) return;
    if (workers_.empty() || runs_inline(count, work)) {
      body(0, count, 0);
      return;
    }
    run_shared(count, work, &call_body<Body>, &body);
  }

 private:
  using Function = void (*)(const void* body, std::int64_t begin, std::int64_t end, int thread);

  template <class Body>
  static void call_body(const void* body, std::int64_t begin, std::int64_t end, int thread) {
    (*static_cast<const Body*>(body))(begin, end, thread);
  }

  // Written by the caller while no piece is out, read by whoever has claimed a piece.
  struct Loop {
    Function function = nullptr;
    const void* body = nullptr;
    std::int64_t count = 0;
    std::int64_t num_pieces = 0;
  };

  static bool runs_inline(std::int64_t count, std::int64_t work);
  void run_shared(std::int64_t count, std::int64_t work, Function function, const void* body);
  bool run_one_piece(int thread);
  void wait_for_workers();
  void work_until_stopped(int thread);
  void sleep_until_ticket_changes(std::uint64_t seen);
  void stop() noexcept;

  Loop loop_;
  // Number of the loop in the upper half, unclaimed pieces in the lower. A claim takes one piece by
  // compare-and-swap, so a worker that comes late can never claim a piece of a finished loop.
  std::atomic<std::uint64_t> ticket_{0};
  std::atomic<std::uint32_t> unfinished_{0};  // pieces of the loop that have not ended
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
  std::vector<std::thread> workers_;
};

}  // namespace fut::cpu
