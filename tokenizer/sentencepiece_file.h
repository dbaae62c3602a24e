// The layout of a SentencePiece model file, read just far enough to know its tokens and to be sure
// that the file is whole before the library sees it. Does not encode anything.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fut {

struct SentencePieceFile {
  // Numbers of the file format.
  enum class Type { Normal = 1, Unknown = 2, Control = 3, UserDefined = 4, Unused = 5, Byte = 6 };
  struct Piece {
    std::string_view text;  // lies in the file's bytes
    Type type = Type::Normal;
  };
  std::vector<Piece> pieces;  // by id
  bool dummy_prefix = true;   // the format's defaults, for files that leave the fields out
  // Whether a text may be cut before any blank that follows something else and encoded in parts:
  // nothing but merging by rank happens to it, and no token reaches across such a place.
  bool cuts_at_blanks = false;
  // What the file has that is beyond any real one's, and would take the library out of its tables or
  // more memory and time than the file is worth; empty: nothing.
  std::string refusal;
};

// nullopt where the bytes are not laid out as such a file: cut short, of another kind, no tokens.
[[nodiscard]] std::optional<SentencePieceFile> parse_sentencepiece_file(std::string_view bytes);

}  // namespace fut
