// Byte-level BPE, the kind of Llama 3: the split pattern cuts a text into pieces, each piece starts
// as its bytes, neighbours merge by rank. Filled from tokenizer.json or from a rank table.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe_merge.h"
#include "tokenizer/split_pattern.h"
#include "tokenizer/tokenizer_impl.h"

namespace fut {

// The bytes that a token stands for where it is spelt in the printable alphabet of byte-level
// vocabularies (`Ġthe` is " the"). A token with a character outside that alphabet stands for
// itself: `spelt` is then false and no text ever makes that token.
struct ByteLevelToken {
  std::string bytes;
  bool spelt = true;
};
[[nodiscard]] ByteLevelToken decode_byte_level(std::string_view token);

class ByteLevelBpe final : public TextEncoder {
 public:
  // `whole_pieces`: a piece that is a token needs no merging (ignore_merges). Throws Data where one
  // of the 256 bytes has no token, because a text with it could not be encoded; `path` is named.
  ByteLevelBpe(std::shared_ptr<const Vocabulary> vocabulary, MergeTable merges,
               std::optional<SplitPattern> pattern, bool whole_pieces,
               const std::filesystem::path& path);

  void encode(std::string_view text, std::vector<TokenId>& ids) const override;

  // Bytes that are not UTF-8 are cut out first: each such stretch is one piece, and the pattern
  // sees the text before and after it as separate texts.
  void split(std::string_view text, const PieceVisitor& visit) const override;

 private:
  std::shared_ptr<const Vocabulary> vocabulary_;
  MergeTable merges_;
  std::optional<SplitPattern> pattern_;
  bool whole_pieces_;
  std::array<TokenId, 256> byte_ids_{};
};

}  // namespace fut
