// Checks of a programmer's promises. A user's mistake is never a check: throw an Error that
// explains.
//   FUT_CHECK   always on; used where an op, a class or a module is entered
//   FUT_DCHECK  only without NDEBUG; used in loops
#pragma once

#include "kernels/error.h"

// The format string and its arguments must give the values that disagree.
#define FUT_CHECK(condition, ...)                                                                 \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      throw ::fut::runtime_failure("{}:{}: check failed: {}: {}", __FILE__, __LINE__, #condition, \
                                   ::fmt::format(__VA_ARGS__));                                   \
    }                                                                                             \
  } while (false)

#ifdef NDEBUG
#define FUT_DCHECK(condition, ...) \
  do {                             \
  } while (false)
#else
#define FUT_DCHECK(condition, ...) FUT_CHECK(condition, __VA_ARGS__)
#endif
