// The counting operators; the other forms (arrays, without exceptions) call these. See counted_memory.h.
#include "tests/support/counted_memory.h"

#include <atomic>
#include <cstdlib>
#include <malloc.h>
#include <new>

namespace {

std::atomic<std::size_t> live{0};
std::atomic<std::size_t> peak{0};

void note(std::size_t now) {
  std::size_t most = peak;
  while (now > most && !peak.compare_exchange_weak(most, now)) {
  }
}

void give_back(void* memory) noexcept {
  if (memory == nullptr) return;
  live -= ::malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) {
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  note(live += ::malloc_usable_size(memory));
  return memory;
}
void operator delete(void* memory) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  give_back(memory);
}

namespace fut::test {

MemoryPeak::MemoryPeak() : before_(live) {
  peak = before_;
}

std::size_t MemoryPeak::bytes() const {
  return peak - before_;
}

}  // namespace fut::test
