// The encoders on any text, against one that looks at all pairs of neighbours before every merge and knows
// tokens as bytes in maps: the same ids, of every kind of tokenizer file, and the text comes back. Besides,
// merging alone on any table of merges, which a vocabulary that makes sense would never show.
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/fuzz/fuzz_bytes.h"
#include "tests/support/temp_folder.h"
#include "tests/support/toy_tokenizers.h"
#include "tokenizer/bpe_merge.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace {

using namespace fut;
using nlohmann::json;
using test::require;
using Pair = std::pair<std::string, std::string>;

constexpr std::string_view kMark = "\u2581";
constexpr int kToySize = 900;

// A tokenizer and what the slow encoder knows of it. Blanks are blanks in both.
struct Kind {
  Tokenizer tokenizer;
  bool of_characters = false;  // and a blank in front; otherwise of bytes, in pieces
  std::map<std::string, TokenId, std::less<>> ids = {};  // of what merging may make
  std::map<Pair, int> ranks = {};  // empty: the id of the two joined is their rank
  std::map<std::string, TokenId, std::less<>> specials = {};
  std::vector<TokenId> bytes = {};  // of characters that are no token
};

Tokenizer load(const char* name, std::string_view content) {
  const test::TempFolder folder;
  test::write_file(folder / name, content);
  return Tokenizer::load(folder.path());
}

void add_tokens(Kind& kind, TokenId from, TokenId to) {
  for (TokenId id = from; id < to; ++id) kind.ids.emplace(kind.tokenizer.piece(id), id);
}

void add_specials(Kind& kind) {
  for (TokenId id = 0; id < kind.tokenizer.vocab_size(); ++id) {
    if (kind.tokenizer.is_special(id)) kind.specials.emplace(kind.tokenizer.piece(id), id);
  }
}

Kind byte_level() {
  const test::ToyVocabulary vocabulary = test::merged_vocabulary(kToySize);
  Kind kind{load("tokenizer.json", test::tokenizer_json(vocabulary).dump())};
  add_tokens(kind, 0, static_cast<TokenId>(vocabulary.pieces.size()));
  int rank = 0;
  for (const Pair& pair : vocabulary.merges) kind.ranks[pair] = rank++;
  add_specials(kind);
  return kind;
}

Kind rank_table() {
  const test::ToyVocabulary vocabulary = test::merged_vocabulary(kToySize);
  Kind kind{load("tokenizer.model", test::rank_table(vocabulary))};
  add_tokens(kind, 0, static_cast<TokenId>(vocabulary.pieces.size()));
  add_specials(kind);
  return kind;
}

void add_characters(Kind& kind, TokenId first_byte) {
  kind.of_characters = true;
  for (TokenId byte = 0; byte < 256; ++byte) kind.bytes.push_back(first_byte + byte);
  add_tokens(kind, first_byte + 256, kind.tokenizer.vocab_size());
  add_specials(kind);
}

Kind sentencepiece() {
  Kind kind{load("tokenizer.model", test::sentencepiece_model(kToySize))};
  add_characters(kind, test::kSentencePieceFirstByte);
  return kind;
}

std::string marked(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == ' ' ? std::string(kMark) : std::string(1, c);
  return out;
}

// As files that were made from a SentencePiece model have it; here merges have an order of their own.
Kind byte_fallback() {
  json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocabulary[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  int next = 3 + 256;
  for (char c = ' '; c < 0x7F; ++c) vocabulary[marked({&c, 1})] = next++;
  json merges = json::array();
  std::map<Pair, int> ranks;
  std::vector<Pair> pairs = test::merged_vocabulary(kToySize).merges;
  pairs.insert(pairs.begin() + 20, Pair{" ", " "});
  pairs.insert(pairs.begin() + 200, Pair{"  ", "  "});
  for (const Pair& pair : pairs) {
    const std::string left = marked(pair.first);
    const std::string right = marked(pair.second);
    if (!vocabulary.contains(left) || !vocabulary.contains(right)) continue;
    if (!vocabulary.contains(left + right)) vocabulary[left + right] = next++;
    ranks[pair] = static_cast<int>(merges.size());
    merges.push_back({left, right});
  }
  const auto special = [](int id, const char* text) {
    return json{{"id", id}, {"content", text}, {"special", true}, {"normalized", false}};
  };
  const auto replace = [](std::string_view from, std::string_view to) {
    return json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  const json prepend = {{"type", "Prepend"}, {"prepend", kMark}};
  const json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  json file;
  file["added_tokens"] = {special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")};
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", {prepend, replace(" ", kMark)}}};
  file["decoder"] = {
      {"type", "Sequence"},
      {"decoders", {replace(kMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}, strip}}};
  file["model"] = {{"type", "BPE"},         {"unk_token", "<unk>"}, {"fuse_unk", true},
                   {"byte_fallback", true}, {"vocab", vocabulary},  {"merges", merges}};
  Kind kind{load("tokenizer.json", file.dump())};
  kind.ranks = std::move(ranks);
  add_characters(kind, 3);
  return kind;
}

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = [] {
    std::vector<Kind> list;
    for (auto* make : {byte_level, rank_table, sentencepiece, byte_fallback})
      list.push_back(make());
    return list;
  }();
  return all;
}

std::optional<int> rank(const Kind& kind, const std::string& left, const std::string& right) {
  if (!kind.ranks.empty()) {
    const auto found = kind.ranks.find({left, right});
    return found == kind.ranks.end() ? std::nullopt : std::optional(found->second);
  }
  const auto found = kind.ids.find(left + right);
  return found == kind.ids.end() ? std::nullopt : std::optional<int>(found->second);
}

void merge_slowly(const Kind& kind, std::vector<std::string>& symbols) {
  while (true) {
    std::optional<int> best;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto here = rank(kind, symbols[i], symbols[i + 1]);
      if (here && (!best || *here < *best)) {
        best = here;
        at = i;
      }
    }
    if (!best) return;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

// One piece of bytes, or one stretch of characters.
void encode_slowly(const Kind& kind, std::string_view piece, std::vector<TokenId>& ids) {
  std::vector<std::string> symbols;
  if (kind.of_characters) {
    symbols.emplace_back(" ");
    for (std::size_t pos = 0; pos < piece.size();) {
      const std::size_t length = std::max<std::size_t>(1, utf8::char_length(piece, pos));
      const std::string_view character = piece.substr(pos, length);
      symbols.emplace_back(character == kMark ? " " : character);
      pos += length;
    }
  } else if (const auto whole = kind.ids.find(piece); whole != kind.ids.end()) {
    ids.push_back(whole->second);
    return;
  } else {
    for (const char byte : piece) symbols.emplace_back(1, byte);
  }
  merge_slowly(kind, symbols);
  for (const std::string& symbol : symbols) {
    const auto found = kind.ids.find(symbol);
    if (found != kind.ids.end()) {
      ids.push_back(found->second);
      continue;
    }
    for (const char byte : symbol) {
      ids.push_back(kind.bytes.at(static_cast<unsigned char>(byte)));
    }
  }
}

std::vector<TokenId> slow_ids(const Kind& kind, std::string_view text, bool parse_special) {
  std::vector<TokenId> ids;
  const auto stretch = [&](std::string_view bytes) {
    if (bytes.empty()) return;
    if (kind.of_characters) return encode_slowly(kind, bytes, ids);
    std::string joined;
    for (const std::string& piece : kind.tokenizer.split(bytes, false)) {
      require(!piece.empty(), "an empty piece");
      joined += piece;
      encode_slowly(kind, piece, ids);
    }
    require(joined == bytes, "the pieces are not the text");
  };
  std::size_t begin = 0;  // of a stretch without special tokens
  for (std::size_t pos = 0; parse_special && pos < text.size();) {
    auto longest = kind.specials.end();
    for (auto it = kind.specials.begin(); it != kind.specials.end(); ++it) {
      if (!text.substr(pos).starts_with(it->first)) continue;
      if (longest == kind.specials.end() || it->first.size() > longest->first.size()) longest = it;
    }
    if (longest == kind.specials.end()) {
      ++pos;
      continue;
    }
    stretch(text.substr(begin, pos - begin));
    ids.push_back(longest->second);
    begin = pos += longest->first.size();
  }
  stretch(text.substr(begin));
  return ids;
}

std::string without_marks(std::string_view text) {
  std::string out;
  for (std::size_t pos = 0; pos < text.size();) {
    const bool mark = text.substr(pos).starts_with(kMark);
    out += mark ? ' ' : text[pos];
    pos += mark ? kMark.size() : 1;
  }
  return out;
}

// A text of whole tokens is full of what merges; any bytes are everything else.
std::string text_of(test::FuzzBytes& input, const Kind& kind, bool of_tokens) {
  constexpr std::size_t kMost = 600;
  if (!of_tokens) return std::string(input.text(kMost));
  std::string text;
  while (!input.empty() && text.size() < kMost) {
    text += kind.tokenizer.piece(input.below(kind.tokenizer.vocab_size()));
  }
  return text;
}

void check_text(test::FuzzBytes& input, const Kind& kind) {
  const int choice = input.byte();
  const bool parse_special = (choice & 1) != 0;
  const std::string text = text_of(input, kind, (choice & 2) != 0);
  const std::vector<TokenId> ids =
      kind.tokenizer.encode(text, {.add_bos = false, .parse_special = parse_special});
  require(ids == slow_ids(kind, text, parse_special), "other ids than one by one");
  if (kind.of_characters && parse_special) return;  // every stretch has a blank of its own
  const std::string back = kind.tokenizer.decode(ids, true);
  require(back == (kind.of_characters ? without_marks(text) : text), "the text does not come back");
}

// Few symbols and few ranks: every tie there is. What a pair makes may be anything.
void check_merging(test::FuzzBytes& input) {
  constexpr int kSymbols = 6;
  std::map<std::pair<TokenId, TokenId>, Merge> pairs;
  const int count = input.below(24);
  MergeTable table(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const TokenId left = input.below(kSymbols);
    const TokenId right = input.below(kSymbols);
    const Merge merge{static_cast<std::uint32_t>(input.below(8)), input.below(kSymbols)};
    table.insert(left, right, merge);
    pairs[{left, right}] = merge;
  }
  std::vector<TokenId> symbols;
  for (const char byte : input.text(300)) {
    symbols.push_back(static_cast<unsigned char>(byte) % kSymbols);
  }
  std::vector<TokenId> slow = symbols;
  merge_symbols(table, symbols);
  while (true) {
    std::optional<Merge> best;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < slow.size(); ++i) {
      const auto found = pairs.find({slow[i], slow[i + 1]});
      if (found == pairs.end() || (best && best->rank <= found->second.rank)) continue;
      best = found->second;
      at = i;
    }
    if (!best) break;
    slow[at] = best->result;
    slow.erase(slow.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  require(symbols == slow, "merged in another order");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  test::FuzzBytes input(data, size);
  const auto which = static_cast<std::size_t>(input.below(5));
  if (which == kinds().size()) {
    check_merging(input);
  } else {
    check_text(input, kinds()[which]);
  }
  return 0;
}
