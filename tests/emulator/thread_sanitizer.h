// The thread sanitizer's calls for programs that switch stacks by themselves; nothing where it is not
// linked. Fibers are not ordered by being switched, only by orders that they release and acquire.
#pragma once

extern "C" {
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_acquire(void* address);
[[gnu::weak]] void __tsan_release(void* address);
}

namespace fut::emulator {

// Whoever acquires it sees what came before its release.
struct SanitizerOrder {
  char place = 0;
};

inline void sanitizer_release(const SanitizerOrder& order) {
  if (__tsan_release != nullptr) __tsan_release(const_cast<char*>(&order.place));
}
inline void sanitizer_acquire(const SanitizerOrder& order) {
  if (__tsan_acquire != nullptr) __tsan_acquire(const_cast<char*>(&order.place));
}
inline void* sanitizer_current_fiber() {
  return __tsan_get_current_fiber == nullptr ? nullptr : __tsan_get_current_fiber();
}
inline void* sanitizer_create_fiber() {
  return __tsan_create_fiber == nullptr ? nullptr : __tsan_create_fiber(0);
}
inline void sanitizer_destroy_fiber(void* fiber) {
  if (__tsan_destroy_fiber != nullptr) __tsan_destroy_fiber(fiber);
}
inline void sanitizer_switch(void* fiber) {
  if (__tsan_switch_to_fiber != nullptr) __tsan_switch_to_fiber(fiber, 1);
}

}  // namespace fut::emulator
