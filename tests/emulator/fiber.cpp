// Switching stacks by hand where that is a dozen instructions: swapcontext() asks the system for the mask
// of signals each time, and an emulated kernel switches millions of times.
#include "tests/emulator/fiber.h"

#include <cstdint>
#include <cstring>

// The address sanitizer's, where it is linked: a fiber that ended on this stack left its marks there.
extern "C" [[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* address,
                                                            std::size_t bytes);

namespace fut::emulator {

namespace {

void clean(std::span<std::byte> stack) {
  if (__asan_unpoison_memory_region != nullptr) {
    __asan_unpoison_memory_region(stack.data(), stack.size());
  }
}

}  // namespace

#if defined(__x86_64__)

// Saves what a callee has to preserve, and takes up what the other one saved.
extern "C" void fut_emulator_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.globl fut_emulator_switch
.type fut_emulator_switch, @function
fut_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size fut_emulator_switch, . - fut_emulator_switch
)");

void Fiber::prepare(std::span<std::byte> stack, void (*entry)()) {
  clean(stack);
  // Six registers, where to go on, and what entry() takes for its return address: there the stack is
  // 8 bytes off a multiple of 16.
  constexpr std::size_t kSaved = 6;
  auto end = reinterpret_cast<std::uintptr_t>(stack.data() + stack.size()) / 16 * 16;
  auto* frame = reinterpret_cast<std::uintptr_t*>(end) - kSaved - 2;
  std::memset(frame, 0, (kSaved + 2) * sizeof(std::uintptr_t));
  frame[kSaved] = reinterpret_cast<std::uintptr_t>(entry);
  stack_pointer_ = frame;
}

void Fiber::change(Fiber& from, Fiber& to) {
  fut_emulator_switch(&from.stack_pointer_, to.stack_pointer_);
}

#else

void Fiber::prepare(std::span<std::byte> stack, void (*entry)()) {
  clean(stack);
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack.data();
  context_.uc_stack.ss_size = stack.size();
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
}

void Fiber::change(Fiber& from, Fiber& to) {
  swapcontext(&from.context_, &to.context_);
}

#endif

}  // namespace fut::emulator
