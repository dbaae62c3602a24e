// The thread pool: every iteration once, failures reach the caller, any number of threads on any
// number of cores.
#include "kernels/cpu/thread_pool.h"

#include <chrono>
#include <gtest/gtest.h>
#include <mutex>
#include <sched.h>
#include <set>
#include <stdexcept>

namespace fut::cpu {
namespace {

constexpr std::int64_t kHeavy = 1 << 20;  // work that is never run inline

std::vector<int> visits(ThreadPool& pool, std::int64_t count, std::int64_t work) {
  std::vector<int> seen(static_cast<std::size_t>(count));
  pool.parallel_for(count, work, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
  });
  return seen;
}

TEST(ThreadPool, VisitsEveryIterationOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const std::int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const std::int64_t work : {std::int64_t{1}, kHeavy}) {
        EXPECT_EQ(visits(pool, count, work), std::vector<int>(static_cast<std::size_t>(count), 1))
            << threads << " threads, " << count << " iterations";
      }
    }
  }
}

TEST(ThreadPool, RunsManyShortLoopsInARow) {
  ThreadPool pool(4);
  std::atomic<std::int64_t> sum = 0;
  for (int round = 0; round < 2000; ++round) {
    pool.parallel_for(
        8, kHeavy, [&](std::int64_t begin, std::int64_t end, int) { sum.fetch_add(end - begin); });
  }
  EXPECT_EQ(sum.load(), 2000 * 8);
}

TEST(ThreadPool, WakesThreadsThatFellAsleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(visits(pool, 100, kHeavy), std::vector<int>(100, 1));
  }
}

TEST(ThreadPool, GivesEachThreadANumberBelowTheirCount) {
  ThreadPool pool(3);
  std::mutex mutex;
  std::set<int> numbers;
  pool.parallel_for(64, kHeavy, [&](std::int64_t, std::int64_t, int thread) {
    const std::lock_guard lock(mutex);
    numbers.insert(thread);
  });
  EXPECT_GE(*numbers.begin(), 0);
  EXPECT_LT(*numbers.rbegin(), pool.num_threads());
}

TEST(ThreadPool, KeepsSmallLoopsOnTheCaller) {
  ThreadPool pool(2);
  const std::thread::id caller = std::this_thread::get_id();
  int num_pieces = 0;
  pool.parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    ++num_pieces;
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(thread, 0);
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 100);
  });
  EXPECT_EQ(num_pieces, 1);
}

TEST(ThreadPool, HandsABodysExceptionToTheCallerAndStaysUsable) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.parallel_for(50, kHeavy,
                                   [](std::int64_t begin, std::int64_t, int) {
                                     if (begin % 2 == 0) throw std::runtime_error("planted");
                                   }),
                 std::runtime_error);
    EXPECT_EQ(visits(pool, 50, kHeavy), std::vector<int>(50, 1));
  }
}

TEST(ThreadPool, TakesTheCoresThatItMayUseWhenNotTold) {
  EXPECT_EQ(ThreadPool(0).num_threads(), usable_cores());
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(ThreadPool(0).num_threads(), 1);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(ThreadPool, StartsAndStopsWithoutWork) {
  for (int round = 0; round < 50; ++round) ThreadPool pool(4);
}

}  // namespace
}  // namespace fut::cpu
