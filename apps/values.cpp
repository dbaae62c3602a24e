// See the header.
#include "apps/values.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "kernels/error.h"
#include "tokenizer/data_file.h"

namespace fut::app {
namespace {

template <class T>
bool read_number(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stopped, status] = std::from_chars(text.data(), end, value);
  return status == std::errc() && stopped == end;
}

}  // namespace

std::int64_t parse_integer(const Argument& argument, std::int64_t least, std::int64_t most,
                           std::string_view allowed) {
  std::int64_t value = 0;
  if (read_number(argument.text, value) && value >= least && value <= most) return value;
  const std::string range =
      allowed.empty() ? fmt::format("{} to {}", least, most) : std::string(allowed);
  throw usage_error("{}: '{}' is not a whole number in range; allowed: {}", argument.source,
                    excerpt(argument.text), range);
}

float parse_real(const Argument& argument, const RealRange& range) {
  double value = 0;
  const bool readable = read_number(argument.text, value) && std::isfinite(value);
  const bool inside = value >= range.least && value <= range.most &&
                      !(range.least_excluded && value == range.least);
  if (!readable || !inside) {
    throw usage_error("{}: '{}' is not a number in range; allowed: {}", argument.source,
                      excerpt(argument.text), range.allowed);
  }
  // A tiny positive number must not become the float 0, which may mean something else.
  if (value > 0) value = std::max(value, static_cast<double>(std::numeric_limits<float>::min()));
  return static_cast<float>(value);
}

std::size_t parse_choice(const Argument& argument,
                         std::initializer_list<std::string_view> choices) {
  const auto found = std::find(choices.begin(), choices.end(), argument.text);
  if (found == choices.end()) {
    throw usage_error("{}: '{}' is not known; allowed: {}", argument.source, excerpt(argument.text),
                      fmt::join(choices, ", "));
  }
  return static_cast<std::size_t>(found - choices.begin());
}

const std::string& parse_text(const Argument& argument, std::string_view what) {
  if (argument.text.empty()) {
    throw usage_error("{}: the empty text is no {}", argument.source, what);
  }
  return argument.text;
}

}  // namespace fut::app
