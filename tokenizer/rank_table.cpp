// Llama 3's tokenizer.model: one line for each token, its bytes in base64 and its rank, which is
// its id. Two neighbours merge where their joined bytes are a token, the lowest rank first: the
// same byte-level BPE as tokenizer.json's once all such pairs are listed. See tokenizer_files.h.
#include <charconv>
#include <utility>

#include "kernels/error.h"
#include "tokenizer/base64.h"
#include "tokenizer/byte_level_bpe.h"
#include "tokenizer/data_file.h"
#include "tokenizer/tokenizer_files.h"

namespace fut {
namespace {

// The longest of Llama 3 has 128 bytes. The bound keeps the list of pairs, which looks at every
// place where a token can be cut, linear in the size of any file.
constexpr std::size_t kLongestToken = 512;

// Llama 3 has 128,000 tokens and 280,147 pairs. Short tokens that are parts of each other can have a
// hundred times as many pairs as bytes.
constexpr std::size_t kMostTokens = std::size_t{1} << 21;
constexpr std::size_t kMostPairs = std::size_t{1} << 21;

constexpr int kLlama3SpecialTokens = 256;
constexpr std::string_view kBos = "<|begin_of_text|>";
constexpr std::string_view kEos = "<|end_of_text|>";

struct Entry {
  std::string bytes;
  std::int64_t rank = 0;
};

Error line_error(const std::filesystem::path& path, std::size_t line, std::string_view what,
                 std::string_view content) {
  return data_error("{}: line {}: {}: '{}'; get the file again", path.string(), line, what,
                    excerpt(content));
}

Entry parse_line(std::string_view content, std::size_t line, const std::filesystem::path& path) {
  const std::size_t blank = content.find(' ');
  if (blank == std::string_view::npos) {
    throw line_error(path, line, "not a base64 token, a blank and a rank", content);
  }
  Entry entry;
  const auto bytes = base64_decode(content.substr(0, blank));
  if (!bytes || bytes->empty()) throw line_error(path, line, "the token is not base64", content);
  if (bytes->size() > kLongestToken) {
    throw line_error(path, line,
                     fmt::format("the token has {} bytes, more than the {} that are supported",
                                 bytes->size(), kLongestToken),
                     content);
  }
  entry.bytes = *bytes;
  const std::string_view rank = content.substr(blank + 1);
  const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), entry.rank);
  if (error != std::errc{} || end != rank.data() + rank.size() || entry.rank < 0) {
    throw line_error(path, line, "the rank is not a number", content);
  }
  return entry;
}

// Calls visit(content, line) for each line that is not empty, without its line end.
template <class Visit>
void for_each_line(std::string_view text, Visit visit) {
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = text.find('\n');
    std::string_view content = text.substr(0, end);
    if (content.ends_with('\r')) content.remove_suffix(1);
    if (!content.empty()) visit(content, line);
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

// The vocabulary and how many ranks there are (the largest plus one).
std::pair<Vocabulary, TokenId> read_ranks(std::string_view text,
                                          const std::filesystem::path& path) {
  std::size_t lines = 0;
  for_each_line(text, [&](std::string_view, std::size_t) { ++lines; });
  if (lines > kMostTokens) {
    throw data_error("{}: has {} lines, more than the {} that are supported; get the file again",
                     path.string(), lines, kMostTokens);
  }
  Vocabulary vocabulary;
  vocabulary.reserve_index(lines, path);
  for_each_line(text, [&](std::string_view content, std::size_t line) {
    Entry entry = parse_line(content, line, path);
    Vocabulary::check_id(entry.rank, lines, content, path);
    const auto id = static_cast<TokenId>(entry.rank);
    if (!vocabulary.set(id, std::move(entry.bytes))) {
      throw line_error(path, line, "another line has the same rank", content);
    }
    if (!vocabulary.index(id)) throw line_error(path, line, "the token is there twice", content);
  });
  const TokenId count = vocabulary.size();
  return {std::move(vocabulary), count};
}

// Every way to cut a token into two tokens is a pair that merges into it.
MergeTable list_merges(const Vocabulary& vocabulary, const std::filesystem::path& path) {
  struct Pair {
    TokenId left, right, result;
  };
  std::vector<Pair> pairs;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const std::string_view bytes = vocabulary.bytes(id);
    for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
      const TokenId left = vocabulary.find(bytes.substr(0, cut));
      if (left < 0) continue;
      const TokenId right = vocabulary.find(bytes.substr(cut));
      if (right >= 0) pairs.push_back({left, right, id});
    }
    if (pairs.size() > kMostPairs) {
      throw data_error(
          "{}: its tokens can be merged in more than {} ways, which no tokenizer needs",
          path.string(), kMostPairs);
    }
  }
  MergeTable merges(pairs.size(), path);
  for (const Pair& pair : pairs) {
    merges.insert(pair.left, pair.right, {static_cast<std::uint32_t>(pair.result), pair.result});
  }
  return merges;
}

// The special tokens of Llama 3.1 in their order; `first` is the id of the first.
std::vector<AddedToken> llama3_special_tokens(TokenId first) {
  constexpr std::string_view kNamed[] = {kBos,
                                         kEos,
                                         "<|reserved_special_token_0|>",
                                         "<|reserved_special_token_1|>",
                                         "<|finetune_right_pad_id|>",
                                         "<|reserved_special_token_2|>",
                                         "<|start_header_id|>",
                                         "<|end_header_id|>",
                                         "<|eom_id|>",
                                         "<|eot_id|>",
                                         "<|python_tag|>"};
  constexpr int kNamedCount = static_cast<int>(std::size(kNamed));
  constexpr int kReservedAmongNamed = 3;
  std::vector<AddedToken> tokens;
  for (int i = 0; i < kLlama3SpecialTokens; ++i) {
    AddedToken token;
    token.id = first + i;
    token.text = i < kNamedCount ? std::string(kNamed[i])
                                 : fmt::format("<|reserved_special_token_{}|>",
                                               i - kNamedCount + kReservedAmongNamed);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

bool looks_like_rank_table(std::string_view bytes) {
  constexpr std::size_t kLooked = 1024;
  for (const char c : bytes.substr(0, kLooked)) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\r' && c != '\t') || byte >= 0x7F) return false;
  }
  return true;
}

TokenizerParts read_rank_table(std::string_view text, const std::filesystem::path& path,
                               const TokenizerConfig& config) {
  if (const auto hint = content_hint(text); !hint.empty()) {
    throw data_error("{}: is no tokenizer file{}", path.string(), hint);
  }
  auto [vocabulary, count] = read_ranks(text, path);
  MergeTable merges = list_merges(vocabulary, path);

  TokenizerParts parts;
  parts.source = path;
  parts.kind = "byte-level BPE (rank table)";
  parts.added_tokens = config.added_tokens;
  if (parts.added_tokens.empty()) parts.added_tokens = llama3_special_tokens(count);
  add_added_tokens(parts.added_tokens, static_cast<std::size_t>(count) + parts.added_tokens.size(),
                   vocabulary, path);
  const auto shared = std::make_shared<const Vocabulary>(std::move(vocabulary));
  parts.vocabulary = shared;
  parts.encoder = std::make_unique<ByteLevelBpe>(
      shared, std::move(merges), SplitPattern(llama3_split_pattern(), path), true, path);
  parts.bos = find_token(parts, kBos);
  parts.eos = find_token(parts, kEos);
  parts.adds_bos = true;
  apply_config(config, parts);
  return parts;
}

}  // namespace fut
