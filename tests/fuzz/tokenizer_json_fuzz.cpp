// tokenizer.json as any bytes. "@bytes":0 in it stands for the 256 bytes of a byte-level vocabulary, ids 0
// to 255, and "@fallback":0 for <0x00> to <0xFF>, so that a seed is a few hundred bytes long.
#include <string>

#include "tests/fuzz/tokenizer_case.h"
#include "tokenizer/tokenizer_files.h"
#include "tokenizer/utf8.h"

namespace {

using namespace fut;

std::string byte_level_entries() {
  std::string entries;
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool prints =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    std::string spelling;
    utf8::append(spelling, prints ? static_cast<char32_t>(byte) : next++);
    if (spelling == "\"" || spelling == "\\") spelling = "\\" + spelling;
    entries += fmt::format("{}\"{}\":{}", byte > 0 ? "," : "", spelling, byte);
  }
  return entries;
}

std::string fallback_entries() {
  std::string entries;
  for (unsigned byte = 0; byte < 256; ++byte) {
    entries += fmt::format("{}\"<0x{:02X}>\":{}", byte > 0 ? "," : "", byte, byte);
  }
  return entries;
}

void replace(std::string& text, std::string_view what, const std::string& by) {
  const std::size_t at = text.find(what);
  if (at != std::string::npos) text.replace(at, what.size(), by);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string bytes = byte_level_entries();
  static const std::string fallback = fallback_entries();
  std::string text(test::as_text(data, size));
  replace(text, R"("@bytes":0)", bytes);
  replace(text, R"("@fallback":0)", fallback);
  test::accepted([&] {
    const TokenizerParts parts = read_hf_tokenizer(text, "tokenizer.json", {});
    // A character without a token is lost where an unknown token stands for it; and merging may spell the
    // token of a byte, or go on from one, as it does for the makers of such files.
    const auto has = [](std::string_view in, std::string_view what) {
      return in.find(what) != in.npos;
    };
    const std::string_view input = test::as_text(data, size);
    const bool spells_bytes = has(input, "<0") || has(input, "0x") || has(input, "\\u");
    const bool is_byte_level = parts.kind.starts_with("byte-level");
    const bool comes_back = is_byte_level || (!has(input, "unk_token") && !spells_bytes);
    test::check_parts(parts, text, comes_back);
  });
  return 0;
}
