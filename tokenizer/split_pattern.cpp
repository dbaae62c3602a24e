// Splitting by regular expression; see split_pattern.h. Three facts about PCRE2 matter here:
//   - it validates the whole text again at every match unless told not to, which is quadratic;
//   - its \s is not Unicode's White_Space (it takes U+180E in), so \s is rewritten;
//   - its JIT may be forbidden on a machine or run out of stack; the interpreter then does the work
//     and gives the same pieces.
#include "tokenizer/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <algorithm>
#include <cstdint>
#include <pcre2.h>

#include "kernels/error.h"
#include "tokenizer/utf8.h"

namespace fut {
namespace {

// Per byte of the text. The known patterns need fewer than five; one that is exponential stops.
constexpr std::uint64_t kStepsPerByte = 16;
constexpr std::uint64_t kLeastSteps = 1'000'000;
constexpr std::uint32_t kHeapLimitKib = 64U << 10;
constexpr std::size_t kLongestPattern = 64U << 10;  // Llama 3's has 150 bytes

template <auto Free>
struct FreeWith {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using MatchData = std::unique_ptr<pcre2_match_data, FreeWith<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, FreeWith<pcre2_match_context_free>>;

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

std::string error_text(int code) {
  char buffer[256] = {};
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(buffer), sizeof buffer);
  return buffer;
}

// \s and \S spelt as properties, which works inside a class too.
std::string with_unicode_space(std::string_view pattern) {
  std::string out;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's') {
      out += "\\p{White_Space}";
    } else if (escaped == 'S') {
      out += "\\P{White_Space}";
    } else {
      out += '\\';
      out += escaped;
    }
  }
  return out;
}

}  // namespace

struct SplitPattern::Compiled {
  std::unique_ptr<pcre2_code, FreeWith<pcre2_code_free>> code;
};

SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

std::string_view llama3_split_pattern() {
  return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

std::string_view byte_level_split_pattern() {
  return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
}

SplitPattern::SplitPattern(std::string_view pattern, const std::filesystem::path& path)
    : compiled_(std::make_unique<Compiled>()), path_(path) {
  if (pattern.find("&&") != std::string_view::npos) {
    throw data_error("{}: the split pattern intersects character classes (&&), not supported",
                     path.string());
  }
  if (pattern.size() > kLongestPattern) {
    throw data_error("{}: the split pattern has {} bytes, more than the {} that are supported",
                     path.string(), pattern.size(), kLongestPattern);
  }
  const std::string rewritten = with_unicode_space(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // \C would take a character apart, and the search would go on in its middle.
  constexpr std::uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  compiled_->code.reset(
      pcre2_compile(units(rewritten), rewritten.size(), kOptions, &error, &offset, nullptr));
  if (compiled_->code == nullptr) {
    throw data_error("{}: the split pattern does not compile: {} at byte {} of {}", path.string(),
                     error_text(error), offset, rewritten.size());
  }
  // Without a JIT (refused by the system, or not built in) pcre2_match interprets: slower, equal.
  static_cast<void>(pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE));
}

void SplitPattern::split(std::string_view text, const PieceVisitor& visit) const {
  const pcre2_code* code = compiled_->code.get();
  const MatchData data(pcre2_match_data_create(1, nullptr));
  const MatchContext context(pcre2_match_context_create(nullptr));
  const std::uint64_t steps = std::max(kLeastSteps, kStepsPerByte * text.size());
  pcre2_set_match_limit(context.get(),
                        static_cast<std::uint32_t>(std::min<std::uint64_t>(steps, UINT32_MAX)));
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);

  std::size_t begin = 0;  // of the next piece
  std::size_t from = 0;   // where the next match may start
  while (from < text.size()) {
    const auto match = [&](std::uint32_t options) {
      return pcre2_match(code, units(text), text.size(), from, options, data.get(), context.get());
    };
    int rc = match(PCRE2_NO_UTF_CHECK);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = match(PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      throw data_error("{}: the split pattern fails at byte {} of a text of {} bytes: {}",
                       path_.string(), from, text.size(), error_text(rc));
    }
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(data.get());
    if (span[1] <= span[0]) {  // an empty match makes no piece; go on one character further
      from = std::max(from, span[0]);
      if (from < text.size()) from += utf8::char_length(text, from);
      continue;
    }
    if (span[0] > begin) visit(text.substr(begin, span[0] - begin));
    visit(text.substr(span[0], span[1] - span[0]));
    begin = from = span[1];
  }
  if (begin < text.size()) visit(text.substr(begin));
}

}  // namespace fut
