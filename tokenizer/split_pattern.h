// The regular expression that cuts a text into pieces before merging, run by PCRE2. The only place
// that knows PCRE2.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer_impl.h"

namespace fut {

// The pattern of Llama 3's tokenizer, for files that do not carry it.
[[nodiscard]] std::string_view llama3_split_pattern();

// The pattern that a ByteLevel pre-tokenizer with use_regex stands for (GPT-2's).
[[nodiscard]] std::string_view byte_level_split_pattern();

class SplitPattern {
 public:
  // `path` is the file that the pattern comes from. Throws Data where it does not compile or uses
  // syntax that PCRE2 would read in another way than the makers of tokenizer files.
  SplitPattern(std::string_view pattern, const std::filesystem::path& path);
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  ~SplitPattern();

  // Visits matches and what lies between them, in order; `text` must be valid UTF-8. Throws Data
  // where the pattern needs more than a fixed number of steps a byte (it backtracks without end).
  void split(std::string_view text, const PieceVisitor& visit) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
  std::filesystem::path path_;
};

}  // namespace fut
