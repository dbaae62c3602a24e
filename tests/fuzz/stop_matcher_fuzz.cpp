// The stop-string matcher on any stop strings and any text in any pieces, against a search over the whole
// text at every piece: the same place, the same string, and before that no byte held longer than it must be.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/stop_matcher.h"
#include "tests/fuzz/fuzz_bytes.h"

namespace {

using fut::test::require;

struct Found {
  std::size_t begin = 0;
  std::string stop;
};

// Byte by byte from the left, of those that begin there the longest.
std::optional<Found> search(std::string_view text, const std::vector<std::string>& stops) {
  for (std::size_t begin = 0; begin < text.size(); ++begin) {
    std::optional<Found> found;
    for (const std::string& stop : stops) {
      if (!text.substr(begin).starts_with(stop)) continue;
      if (!found || stop.size() > found->stop.size()) found = Found{begin, stop};
    }
    if (found) return found;
  }
  return std::nullopt;
}

// Where the first suffix begins that a stop string could go on from.
std::size_t first_open(std::string_view text, const std::vector<std::string>& stops) {
  for (std::size_t begin = 0; begin < text.size(); ++begin) {
    for (const std::string& stop : stops) {
      if (std::string_view(stop).starts_with(text.substr(begin))) return begin;
    }
  }
  return text.size();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fut::test::FuzzBytes input(data, size);
  std::vector<std::string> stops(static_cast<std::size_t>(input.below(5)));
  bool any_empty = false;
  for (std::string& stop : stops) {
    stop = input.text(static_cast<std::size_t>(input.below(12)));
    any_empty |= stop.empty();
  }
  std::optional<fut::StopMatcher> matcher;
  const bool made = fut::test::accepted([&] { matcher.emplace(stops); });
  require(made != any_empty, "an empty stop string is refused, others are not");
  if (!made) return 0;

  std::string text;
  std::string released;
  std::optional<Found> found;
  while (!input.empty()) {
    const std::string_view piece = input.text(static_cast<std::size_t>(input.below(16)));
    const std::string out = matcher->push(piece);
    if (found) {
      require(out.empty(), "bytes behind a match");
      continue;
    }
    text += piece;
    released += out;
    found = search(text, stops);
    require(matcher->matched().has_value() == found.has_value(), "a match is missed or made up");
    if (found) {
      require(*matcher->matched() == found->stop, "another stop string");
      require(released == text.substr(0, found->begin), "what stands before the match");
    } else {
      require(released == text.substr(0, first_open(text, stops)),
              "held back: too much or too little");
    }
  }
  const std::string rest = matcher->flush();
  require(found ? rest.empty() : released + rest == text, "the end of the text");
  return 0;
}
