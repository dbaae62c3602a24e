// A second stack to run on, and the switch between two of them: what the emulator makes threads of.
// Nothing here knows who runs when.
#pragma once

#include <cstddef>
#include <span>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace fut::emulator {

class Fiber {
 public:
  // Makes it start in `entry` on `stack`; entry() must not return.
  void prepare(std::span<std::byte> stack, void (*entry)());

  // Leaves `from`, which has to be the one that runs, for `to`; returns when somebody switches back.
  static void change(Fiber& from, Fiber& to);

 private:
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_{};
#endif
};

}  // namespace fut::emulator
