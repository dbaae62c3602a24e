// Byte-level BPE; see byte_level_bpe.h. Also the printable alphabet of its vocabularies: bytes that
// print in Latin-1 stand for themselves, the other 68 for U+0100 to U+0143, in order.
#include "tokenizer/byte_level_bpe.h"

#include <utility>

#include "kernels/error.h"
#include "tokenizer/utf8.h"

namespace fut {
namespace {

constexpr std::size_t kAlphabetEnd = 0x100 + 68;

// Character of the alphabet to byte; -1 for a character outside.
constexpr std::array<int, kAlphabetEnd> kByteOf = [] {
  std::array<int, kAlphabetEnd> bytes{};
  bytes.fill(-1);
  std::size_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    bytes[printable ? byte : next++] = static_cast<int>(byte);
  }
  return bytes;
}();

}  // namespace

ByteLevelToken decode_byte_level(std::string_view token) {
  ByteLevelToken decoded;
  decoded.bytes.reserve(token.size());
  for (std::size_t pos = 0; pos < token.size();) {
    const std::size_t length = utf8::char_length(token, pos);
    const char32_t c = length == 0 ? U'\0' : utf8::code_point(token, pos, length);
    if (length == 0 || c >= kAlphabetEnd || kByteOf[c] < 0) return {std::string(token), false};
    decoded.bytes.push_back(static_cast<char>(kByteOf[c]));
    pos += length;
  }
  return decoded;
}

ByteLevelBpe::ByteLevelBpe(std::shared_ptr<const Vocabulary> vocabulary, MergeTable merges,
                           std::optional<SplitPattern> pattern, bool whole_pieces,
                           const std::filesystem::path& path)
    : vocabulary_(std::move(vocabulary)),
      merges_(std::move(merges)),
      pattern_(std::move(pattern)),
      whole_pieces_(whole_pieces) {
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    const char value = static_cast<char>(byte);
    byte_ids_[byte] = vocabulary_->find({&value, 1});
    if (byte_ids_[byte] >= 0) continue;
    throw data_error(
        "{}: byte 0x{:02X} has no token, so that texts with it cannot be encoded; a byte-level "
        "vocabulary needs all 256",
        path.string(), byte);
  }
}

void ByteLevelBpe::encode(std::string_view text, std::vector<TokenId>& ids) const {
  std::vector<TokenId> symbols;
  split(text, [&](std::string_view piece) {
    if (whole_pieces_) {
      if (const TokenId id = vocabulary_->find(piece); id >= 0) {
        ids.push_back(id);
        return;
      }
    }
    symbols.clear();
    for (const char byte : piece) symbols.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
    merge_symbols(merges_, symbols);
    ids.insert(ids.end(), symbols.begin(), symbols.end());
  });
}

void ByteLevelBpe::split(std::string_view text, const PieceVisitor& visit) const {
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t valid = utf8::valid_run(text, pos);
    if (valid > 0) {
      const std::string_view run = text.substr(pos, valid);
      if (pattern_) {
        pattern_->split(run, visit);
      } else {
        visit(run);
      }
      pos += valid;
    }
    const std::size_t invalid = utf8::invalid_run(text, pos);
    if (invalid > 0) visit(text.substr(pos, invalid));
    pos += invalid;
  }
}

}  // namespace fut
