// The few fields that matter of the format's messages; see sentencepiece_file.h. A message is a row
// of fields: a key (field number and how its value is laid out), then the value.
#include "tokenizer/sentencepiece_file.h"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>

#include "tokenizer/byte_fallback_bpe.h"
#include "tokenizer/character_map.h"
#include "tokenizer/utf8.h"

namespace fut {
namespace {

// The library tries every length of a token at every byte of a text; tokens of real models have at most
// 16 characters, their maps 300 kB. What a model is to be tested with it runs when it is read.
constexpr std::size_t kLongestPiece = 512;
constexpr std::size_t kMostPieces = std::size_t{1} << 20;
constexpr std::size_t kLongestMap = std::size_t{1} << 22;
constexpr std::size_t kLongestSelfTest = std::size_t{1} << 16;

enum class Layout { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };

struct Field {
  std::uint64_t number = 0;
  Layout layout = Layout::Varint;
  std::uint64_t value = 0;  // of a Varint
  std::string_view bytes;   // of the others
};

// Takes fields off the front of a message. After a damaged one, ok() is false and nothing follows.
class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}

  [[nodiscard]] bool ok() const { return ok_; }

  std::optional<Field> next() {
    if (rest_.empty() || !ok_) return std::nullopt;
    ok_ = false;
    Field field;
    const auto key = varint();
    if (!key) return std::nullopt;
    field.number = *key >> 3;
    field.layout = static_cast<Layout>(*key & 7);
    if (field.number == 0 || !read_value(field)) return std::nullopt;
    ok_ = true;
    return field;
  }

 private:
  bool read_value(Field& field) {
    switch (field.layout) {
      case Layout::Varint: {
        const auto value = varint();
        field.value = value.value_or(0);
        return value.has_value();
      }
      case Layout::Fixed64:
        return take(8, field);
      case Layout::Fixed32:
        return take(4, field);
      case Layout::Bytes: {
        const auto length = varint();
        return length && take(*length, field);
      }
    }
    return false;  // groups and unknown layouts: not in this format
  }

  bool take(std::uint64_t count, Field& field) {
    if (count > rest_.size()) return false;
    field.bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return true;
  }

  std::optional<std::uint64_t> varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return std::nullopt;
  }

  std::string_view rest_;
  bool ok_ = true;
};

std::optional<SentencePieceFile::Piece> parse_piece(std::string_view message) {
  constexpr std::uint64_t kText = 1;
  constexpr std::uint64_t kType = 3;
  SentencePieceFile::Piece piece;
  FieldReader reader(message);
  while (const auto field = reader.next()) {
    if (field->number == kText && field->layout == Layout::Bytes) piece.text = field->bytes;
    if (field->number != kType) continue;
    if (field->layout != Layout::Varint || field->value < 1 || field->value > 6) {
      return std::nullopt;
    }
    piece.type = static_cast<SentencePieceFile::Type>(field->value);
  }
  // A NUL inside a token ends the library by an exception that nothing can catch.
  const bool whole = utf8::valid_run(piece.text, 0) == piece.text.size() &&
                     piece.text.find('\0') == std::string_view::npos;
  if (!reader.ok() || piece.text.empty() || !whole) return std::nullopt;
  return piece;
}

// What the trainer's and the normalizer's parts say, with the format's defaults.
struct Settings {
  std::uint64_t model_type = 1;  // 2: BPE
  bool blank_behind_word = false;
  bool has_character_map = false;
  bool dummy_prefix = true;
  bool removes_blanks = true;
  bool marks_blanks = true;
};

std::string map_problem(std::string_view map) {
  if (map.size() > kLongestMap) {
    return fmt::format("a character map of {} bytes, more than the {} that are supported",
                       map.size(), kLongestMap);
  }
  if (is_sound_character_map(map)) return {};
  return fmt::format("a character map of {} bytes that leads out of its own table", map.size());
}

std::string piece_problem(std::string_view piece, std::size_t count) {
  if (piece.size() > kLongestPiece) {
    return fmt::format("a token of {} bytes, more than the {} that are supported", piece.size(),
                       kLongestPiece);
  }
  if (count > kMostPieces) return fmt::format("more than the {} tokens supported", kMostPieces);
  return {};
}

// The two readers give false where the message is damaged.
bool read_trainer(std::string_view message, Settings& settings) {
  FieldReader reader(message);
  while (const auto field = reader.next()) {
    if (field->number == 3) settings.model_type = field->value;
    if (field->number == 24) settings.blank_behind_word = field->value != 0;
  }
  return reader.ok();
}

bool read_normalizer(std::string_view message, Settings& settings, std::string& refusal) {
  FieldReader reader(message);
  while (const auto field = reader.next()) {
    if (field->number == 2) {
      settings.has_character_map = !field->bytes.empty();
      if (settings.has_character_map && refusal.empty()) refusal = map_problem(field->bytes);
    }
    if (field->number == 3) settings.dummy_prefix = field->value != 0;
    if (field->number == 4) settings.removes_blanks = field->value != 0;
    if (field->number == 5) settings.marks_blanks = field->value != 0;
  }
  return reader.ok();
}

// Whether a blank mark follows something else within the piece.
bool reaches_over_blank(std::string_view piece) {
  while (piece.starts_with(kBlankMark)) piece.remove_prefix(kBlankMark.size());
  return piece.find(kBlankMark) != std::string_view::npos;
}

bool can_cut_at_blanks(const Settings& settings,
                       const std::vector<SentencePieceFile::Piece>& pieces) {
  constexpr std::uint64_t kBpe = 2;
  return settings.model_type == kBpe && settings.dummy_prefix && settings.marks_blanks &&
         !settings.removes_blanks && !settings.has_character_map && !settings.blank_behind_word &&
         std::none_of(pieces.begin(), pieces.end(),
                      [](const auto& piece) { return reaches_over_blank(piece.text); });
}

}  // namespace

std::optional<SentencePieceFile> parse_sentencepiece_file(std::string_view bytes) {
  constexpr std::uint64_t kPieces = 1;
  constexpr std::uint64_t kTrainer = 2;
  constexpr std::uint64_t kNormalizer = 3;
  constexpr std::uint64_t kSelfTest = 4;
  constexpr std::uint64_t kDenormalizer = 5;

  SentencePieceFile file;
  Settings settings;
  FieldReader reader(bytes);
  while (const auto field = reader.next()) {
    if (field->layout != Layout::Bytes) return std::nullopt;  // this message holds only messages
    if (field->number == kPieces) {
      const auto piece = parse_piece(field->bytes);
      if (!piece) return std::nullopt;
      file.pieces.push_back(*piece);
      if (file.refusal.empty()) file.refusal = piece_problem(piece->text, file.pieces.size());
      if (!file.refusal.empty()) return file;
    } else if (field->number == kTrainer) {
      if (!read_trainer(field->bytes, settings)) return std::nullopt;
    } else if (field->number == kNormalizer) {
      if (!read_normalizer(field->bytes, settings, file.refusal)) return std::nullopt;
    } else if (field->number == kDenormalizer) {
      Settings of_output;
      if (!read_normalizer(field->bytes, of_output, file.refusal)) return std::nullopt;
    } else if (field->number == kSelfTest && field->bytes.size() > kLongestSelfTest) {
      file.refusal = fmt::format("{} bytes of texts to test it with, more than the {} supported",
                                 field->bytes.size(), kLongestSelfTest);
    }
  }
  if (!reader.ok() || file.pieces.empty()) return std::nullopt;
  file.dummy_prefix = settings.dummy_prefix;
  file.cuts_at_blanks = can_cut_at_blanks(settings, file.pieces);
  return file;
}

}  // namespace fut
