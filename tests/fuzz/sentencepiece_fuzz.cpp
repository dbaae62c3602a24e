// tokenizer.model as a SentencePiece model. A first byte B stands for the tokens <0x00> to <0xFF> behind
// the rest; any other is the first byte of the file. The library itself is not instrumented: what is looked
// for is a model that it takes and that leads it, or us, out of bounds.
#include <string>

#include "tests/fuzz/tokenizer_case.h"
#include "tokenizer/sentencepiece_file.h"
#include "tokenizer/tokenizer_files.h"

namespace {

using namespace fut;

// Pieces {1: "<0x..>", 3: 6 (a byte)}, each behind its key and length.
std::string byte_pieces() {
  std::string pieces;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const std::string piece = fmt::format("\x0A\x06<0x{:02X}>\x18\x06", byte);
    pieces += '\x0A';
    pieces += static_cast<char>(piece.size());
    pieces += piece;
  }
  return pieces;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string bytes = byte_pieces();
  const std::string_view input = test::as_text(data, size);
  const std::string model =
      input.starts_with('B') ? std::string(input.substr(1)) + bytes : std::string(input);
  if (const auto file = parse_sentencepiece_file(model)) {
    for (const auto& piece : file->pieces) {
      test::require(piece.text.data() >= model.data() &&
                        piece.text.data() + piece.text.size() <= model.data() + model.size(),
                    "a token outside its file");
    }
  }
  test::accepted(
      [&] { test::check_parts(read_sentencepiece(model, "tokenizer.model", {}), model, false); });
  return 0;
}
