// Values of flags: numbers and words with their allowed ranges. Every failure is a Usage error that
// names the flag, what was written and what is allowed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "apps/flags.h"

namespace fut::app {

// `allowed` describes the range for users where the numbers alone would not.
[[nodiscard]] std::int64_t parse_integer(const Argument& argument, std::int64_t least,
                                         std::int64_t most, std::string_view allowed = {});

struct RealRange {
  double least = 0;
  double most = 0;
  bool least_excluded = false;
  std::string_view allowed;
};
// The result fits a float; a value above zero stays above zero.
[[nodiscard]] float parse_real(const Argument& argument, const RealRange& range);

// Position of the word in `choices`.
[[nodiscard]] std::size_t parse_choice(const Argument& argument,
                                       std::initializer_list<std::string_view> choices);

// Refuses the empty text.
[[nodiscard]] const std::string& parse_text(const Argument& argument, std::string_view what);

}  // namespace fut::app
