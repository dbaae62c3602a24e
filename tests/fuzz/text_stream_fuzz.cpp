// The UTF-8 stream on any bytes in any pieces, against a set of all beginnings of characters: what it shows,
// joined, is what it was given; it holds back the unfinished character at the end and nothing else, so that
// no character is ever shown by halves. The walk over a text that it rests on is held against the same set.
#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "tests/fuzz/fuzz_bytes.h"
#include "tokenizer/text_stream.h"
#include "tokenizer/utf8.h"

namespace {

using fut::test::require;

// By arithmetic from the scalar value, which the tokenizer's reader never does.
std::string spelt(char32_t c) {
  if (c < 0x80) return {static_cast<char>(c)};
  const int later = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  const char32_t mark = later == 1 ? 0xC0 : later == 2 ? 0xE0 : 0xF0;
  std::string out(1, static_cast<char>(mark + (c >> (6 * later))));
  for (int i = later - 1; i >= 0; --i) {
    out += static_cast<char>(0x80 + ((c >> (6 * i)) % 64));
  }
  return out;
}

// Every beginning of a character that lacks its last byte or more, the empty one left out.
const std::set<std::string, std::less<>>& beginnings() {
  static const auto all = [] {
    std::set<std::string, std::less<>> set;
    for (char32_t c = 0x80; c < 0x110000; c += 64) {  // the last byte holds the lowest six bits
      if (c >= 0xD800 && c < 0xE000) continue;
      const std::string whole = spelt(c);
      for (std::size_t n = 1; n < whole.size(); ++n) set.insert(whole.substr(0, n));
    }
    return set;
  }();
  return all;
}

// Bytes of the character that begins at text[pos], 0 for none.
std::size_t length_at(std::string_view text, std::size_t pos) {
  const auto first = static_cast<unsigned char>(text[pos]);
  if (first < 0x80) return 1;
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (pos + length > text.size()) return 0;
  const auto last = static_cast<unsigned char>(text[pos + length - 1]);
  const bool begun = beginnings().contains(text.substr(pos, length - 1));
  return begun && last >= 0x80 && last < 0xC0 ? length : 0;
}

std::size_t unfinished(std::string_view text) {
  for (std::size_t n = std::min<std::size_t>(3, text.size()); n > 0; --n) {
    if (beginnings().contains(text.substr(text.size() - n))) return n;
  }
  return 0;
}

void check_walk(std::string_view text) {
  std::size_t run = 0;
  std::string spelt_again;
  for (std::size_t pos = 0; pos < text.size(); ++pos) {
    const std::size_t length = length_at(text, pos);
    require(fut::utf8::char_length(text, pos) == length, "a character's length");
    require((fut::utf8::invalid_run(text, pos) == 0) == (length > 0), "a stretch of no characters");
    if (length == 0) continue;
    const char32_t c = fut::utf8::code_point(text, pos, length);
    require(spelt(c) == text.substr(pos, length), "a character that is another");
    spelt_again.clear();
    fut::utf8::append(spelt_again, c);
    require(spelt_again == text.substr(pos, length), "a character that is spelt in another way");
  }
  while (run < text.size() && length_at(text, run) > 0) run += length_at(text, run);
  require(fut::utf8::valid_run(text, 0) == run, "a stretch of characters");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fut::test::FuzzBytes input(data, size);
  fut::TextStream stream;
  std::string given;
  std::size_t shown = 0;  // bytes of `given`
  const auto take = [&](const std::string& chunk) {
    require(std::string_view(given).substr(shown, chunk.size()) == chunk,
            "bytes that were not given");
    shown += chunk.size();
  };
  while (!input.empty()) {
    const int choice = input.byte();
    if (choice == 255) {
      take(stream.flush());
      require(shown == given.size(), "something is held after the end");
      given.clear();
      shown = 0;
      continue;
    }
    const std::string_view bytes = input.text(static_cast<std::size_t>(choice % 8));
    given += bytes;
    take(stream.push(bytes));
    require(given.size() - shown == unfinished(given), "held back: too much or too little");
  }
  check_walk(given);
  take(stream.flush());
  require(shown == given.size(), "bytes were lost");
  require(stream.flush().empty(), "something came behind the end");
  return 0;
}
