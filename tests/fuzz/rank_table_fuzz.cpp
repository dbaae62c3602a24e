// tokenizer.model as a rank table. A first byte B stands for the lines of the 256 bytes, ranks 0 to 255,
// in front of the rest; any other is the first byte of the file.
#include <string>

#include "tests/fuzz/tokenizer_case.h"
#include "tokenizer/tokenizer_files.h"

namespace {

using namespace fut;

std::string lines_of_bytes() {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string lines;
  for (unsigned byte = 0; byte < 256; ++byte) {
    lines += fmt::format("{}{}== {}\n", kDigits[byte >> 2U], kDigits[(byte & 3U) << 4U], byte);
  }
  return lines;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string bytes = lines_of_bytes();
  const std::string_view input = test::as_text(data, size);
  const std::string text =
      input.starts_with('B') ? bytes + std::string(input.substr(1)) : std::string(input);
  static_cast<void>(looks_like_rank_table(text));
  test::accepted(
      [&] { test::check_parts(read_rank_table(text, "tokenizer.model", {}), text, true); });
  return 0;
}
