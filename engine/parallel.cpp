// Threads for one loop.
#include "engine/parallel.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <vector>

namespace fut {
namespace {

using Body = std::function<void(std::int64_t, std::int64_t)>;

void run_on_threads(std::int64_t num_threads, std::int64_t count, const Body& body) {
  const std::int64_t pieces = std::min(num_threads, count);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(pieces));
  const auto run_piece = [&](std::int64_t piece) {
    try {
      body(count * piece / pieces, count * (piece + 1) / pieces);
    } catch (...) {
      failures[static_cast<std::size_t>(piece)] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::int64_t piece = 1; piece < pieces; ++piece) threads.emplace_back(run_piece, piece);
    run_piece(0);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace

ParallelFor parallel_for_on_threads(int num_threads) {
  const std::int64_t threads =
      num_threads > 0 ? num_threads : std::max(1U, std::thread::hardware_concurrency());
  return [threads](std::int64_t count, const Body& body) {
    if (count > 0) run_on_threads(threads, count, body);
  };
}

}  // namespace fut
