// Tokenizer files made to hurt, as hostile_files_test.cpp has them for weights: ids that would make tables
// of holes, lists that multiply, tokens that share a hash, patterns that take characters apart, and character
// maps that lead a library out of its own arrays.
#include <bit>
#include <cstring>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "tests/support/toy_tokenizers.h"
#include "tests/unit/hostile_case.h"
#include "tokenizer/character_map.h"
#include "tokenizer/tokenizer.h"

namespace fut::test {
namespace {

void read_tokenizer(const std::filesystem::path& folder) {
  static_cast<void>(Tokenizer::load(folder));
}

// ---- tokenizer.json -----------------------------------------------------------------------------

// A byte-level file of these parts; one byte has a token.
std::string byte_level(std::string_view vocabulary, std::string_view merges = "",
                       std::string_view added = "", std::string_view regex = ".") {
  return fmt::format(
      R"({{"added_tokens":[{}],"pre_tokenizer":{{"type":"Sequence","pretokenizers":[)"
      R"({{"type":"Split","pattern":{{"Regex":"{}"}},"behavior":"Isolated"}},)"
      R"({{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}}]}},)"
      R"("decoder":{{"type":"ByteLevel"}},)"
      R"("model":{{"type":"BPE","vocab":{{"a":0{}}},"merges":[{}]}}}})",
      added, regex, vocabulary, merges);
}

std::string added_tokens(int count, std::size_t bytes) {
  std::string list;
  for (int i = 0; i < count; ++i) {
    std::string text = fmt::format("{}", i);
    text.resize(bytes, 'x');
    list += fmt::format(R"({}{{"id":{},"content":"{}"}})", i > 0 ? "," : "", i + 1, text);
  }
  return list;
}

std::vector<Hostile> json_files() {
  const auto vocabulary = [](const char* name, const char* entry, const char* words) {
    return Hostile{name, "tokenizer.json", read_tokenizer, [=] { return byte_level(entry); },
                   words};
  };
  const auto file = [](const char* name, std::function<std::string()> content, const char* words) {
    return Hostile{name, "tokenizer.json", read_tokenizer, std::move(content), words};
  };
  return {
      vocabulary("id_2_31", ",\"b\":2147483647", "cannot be in a vocabulary of"),
      vocabulary("id_2_63", ",\"b\":9223372036854775808", "cannot be in a vocabulary of"),
      vocabulary("id_2_64", ",\"b\":18446744073709551616", "no whole number"),
      vocabulary("id_negative", ",\"b\":-9223372036854775808", "cannot be in a vocabulary of"),
      vocabulary("id_twice", ",\"b\":0", "belongs to two tokens"),
      vocabulary("token_nested", ",\"b\":{\"c\":{}}", "no whole number"),
      file(
          "added_id_2_31", [] { return byte_level("", "", R"({"id":2147483647,"content":"x"})"); },
          "cannot be in a vocabulary of"),
      file(
          "added_id_2_32", [] { return byte_level("", "", R"({"id":4294967296,"content":"x"})"); },
          "outside 0 to"),
      file(
          "added_1_mib", [] { return byte_level("", "", added_tokens(1, kMiB)); },
          "must have 1 to"),
      file(
          "added_many", [] { return byte_level("", "", added_tokens(5000, 256)); },
          "are spelt with more than"),
      file(
          "merge_of_nothing", [] { return byte_level("", "\"a b\""); }, "which model.vocab lacks"),
      file(
          "merge_nested", [] { return byte_level("", times("[", kMiB)); }, "is not a pair"),
      file(
          "nested", [] { return times("[", kMiB); }, "nested more than"),
      file(
          "nested_objects", [] { return times("{\"a\":", kMiB); }, "nested more than"),
      file(
          "many_values", [] { return "[" + times("[],", kMiB + 1) + "0]"; },
          "values beside vocabulary and merges"),
      file(
          "number_1e999", [] { return std::string("{\"a\":1e999}"); }, "not valid JSON"),
      file(
          "vocabulary_twice",
          [] { return std::string(R"({"model":{"vocab":{"a":0},"vocab":{"b":1}}})"); }, "twice"),
      file(
          "template_index",
          [] {
            std::string text = byte_level("");
            text.pop_back();
            return text + R"(,"post_processor":{"type":"TemplateProcessing","single":[)"
                          R"({"SpecialToken":{"id":"99999999999999999999999999"}}],)"
                          R"("special_tokens":[1]}})";
          },
          "must stand for exactly one id"),
      {"config_nested", "tokenizer_config.json",
       [](const std::filesystem::path& folder) {
         write_file(folder / "tokenizer.json", "{}");
         read_tokenizer(folder);
       },
       [] { return "{\"a\":" + times("[", kMiB); }, "nested more than"},
      {"config_number_1e999", "tokenizer_config.json",
       [](const std::filesystem::path& folder) {
         write_file(folder / "tokenizer.json", "{}");
         read_tokenizer(folder);
       },
       [] { return std::string("{\"a\":1e999}"); }, "too large for a float64"},
  };
}

std::vector<Hostile> split_patterns() {
  const auto regex = [](const char* name, std::function<std::string()> pattern, const char* words) {
    return Hostile{name, "tokenizer.json", read_tokenizer,
                   [=] { return byte_level("", "", "", pattern()); }, words};
  };
  return {
      regex(
          "pattern_1_mib", [] { return times("a", kMiB); }, "the split pattern has 1048576 bytes"),
      regex(
          "pattern_nested", [] { return times("(", 30'000) + times(")", 30'000); },
          "does not compile"),
      regex(
          "pattern_multiplies", [] { return std::string("((((a{1000}){1000}){1000}){1000})"); },
          "does not compile"),
      regex(
          "pattern_by_bytes", [] { return std::string("\\\\C"); }, "does not compile"),
  };
}

// ---- rank tables --------------------------------------------------------------------------------

// Tokens of eight bytes that the table of tokens, as it hashes today, would put into one place.
std::string tokens_of_one_place(int count) {
  constexpr std::uint64_t kMultiplier = 0x9E3779B97F4A7C15U;
  std::uint64_t inverse = 1;
  for (int i = 0; i < 6; ++i) inverse *= 2 - kMultiplier * inverse;
  std::string table;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t hash = static_cast<std::uint64_t>(i + 1) << 40U;  // low bits: all zero
    std::uint64_t mixed = hash ^ hash >> 29U;
    mixed ^= hash >> 58U;
    std::uint64_t state = std::rotr(mixed * inverse, 29);
    state = std::rotr(state * inverse, 29) ^ 8 * kMultiplier;
    char bytes[8];
    std::memcpy(bytes, &state, sizeof bytes);
    table += fmt::format("{} {}\n", base64({bytes, sizeof bytes}), i);
  }
  return table;
}

// Every part of a random text is a token: each token of n bytes can be merged in n - 1 ways.
std::string parts_of_a_text(std::size_t length) {
  std::mt19937_64 random(1);
  std::string text(length, '\0');
  for (char& c : text) c = static_cast<char>(random() & 0xFFU);
  std::string table;
  int rank = 0;
  for (std::size_t size = 4; size <= length; ++size) {
    for (std::size_t begin = 0; begin + size <= length; ++begin) {
      table += fmt::format("{} {}\n", base64(std::string_view(text).substr(begin, size)), rank++);
    }
  }
  return table;
}

std::vector<Hostile> rank_tables() {
  const auto line = [](const char* name, const char* text, const char* words) {
    return Hostile{name, "tokenizer.model", read_tokenizer, [=] { return std::string(text); },
                   words};
  };
  return {
      line("rank_2_63", "YQ== 9223372036854775808\n", "the rank is not a number"),
      line("rank_almost_2_63", "YQ== 9223372036854775807\n", "cannot be in a vocabulary of"),
      line("rank_2_31", "YQ== 2147483647\n", "cannot be in a vocabulary of"),
      line("rank_negative", "YQ== -1\n", "the rank is not a number"),
      line("bytes_missing", "YQ== 0\n", "has no token"),
      {"token_1_mib", "tokenizer.model", read_tokenizer,
       [] { return times("YWFh", kMiB / 4) + " 0\n"; }, "more than the 512"},
      {"one_place", "tokenizer.model", read_tokenizer, [] { return tokens_of_one_place(20'000); },
       "share one place"},
      {"many_ways", "tokenizer.model", read_tokenizer, [] { return parts_of_a_text(250); },
       "can be merged in more than"},
      {"blank_megabyte", "tokenizer.model", read_tokenizer, [] { return times("\n", 8 * kMiB); },
       "has no token"},
  };
}

// ---- SentencePiece ------------------------------------------------------------------------------

std::string varint(std::uint64_t number) {
  std::string out;
  for (; number >= 0x80; number >>= 7U) out += static_cast<char>((number & 0x7FU) | 0x80U);
  return out + static_cast<char>(number);
}
std::string field(int number, std::string_view bytes) {
  return varint(static_cast<std::uint64_t>(number) << 3U | 2U) + varint(bytes.size()) +
         std::string(bytes);
}
std::string field(int number, std::uint64_t value) {
  return varint(static_cast<std::uint64_t>(number) << 3U) + varint(value);
}
std::string piece(std::string_view text, std::uint64_t type = 1) {
  return field(1, field(1, text) + field(3, type));
}

constexpr std::size_t kUnits = 768;

// A map in which "a" is replaced by "b": root -> block 256 -> block 512, whose first unit is the value.
std::vector<std::uint32_t> small_trie() {
  std::vector<std::uint32_t> units(kUnits, 0);
  const std::uint32_t place = 256U ^ 'a';
  units[0] = 256U << 10U;
  units[place] = 'a' | 0x100U | (place ^ 512U) << 10U;
  units[512] = 0x80000000U;
  return units;
}
std::string character_map(const std::vector<std::uint32_t>& units) {
  std::string map;
  const auto put = [&](std::uint32_t number) {
    for (int i = 0; i < 4; ++i) map += static_cast<char>(number >> (8 * i) & 0xFFU);
  };
  put(static_cast<std::uint32_t>(4 * units.size()));
  for (const std::uint32_t unit : units) put(unit);
  return map + std::string("b\0", 2);
}

std::string model(std::string_view more) {
  return piece("<unk>", 2) + piece("a") + field(2, field(3, std::uint64_t{2})) + std::string(more);
}
std::string model_with_map(std::size_t unit, std::uint32_t value) {
  std::vector<std::uint32_t> units = small_trie();
  units[unit] = value;
  return model(field(3, field(2, character_map(units))));
}

std::vector<Hostile> sentencepiece_files() {
  const auto file = [](const char* name, std::function<std::string()> content, const char* words) {
    return Hostile{name, "tokenizer.model", read_tokenizer, std::move(content), words};
  };
  return {
      file(
          "length_2_63", [] { return varint(1U << 3U | 2U) + varint(1ULL << 63U) + "x"; },
          "or it is damaged"),
      file(
          "length_100_gb", [] { return varint(1U << 3U | 2U) + varint(100'000'000'000U) + "x"; },
          "or it is damaged"),
      file(
          "varint_without_end", [] { return "\x0A" + times("\xFF", 100); }, "or it is damaged"),
      file(
          "type_2_40", [] { return model(piece("b", 1ULL << 40U)); }, "or it is damaged"),
      file(
          "piece_twice", [] { return model(piece("a")); }, "contradicts itself"),
      file(
          "piece_10_kib", [] { return model(piece(times("a", 10'240))); },
          "a token of 10240 bytes"),
      file(
          "pieces_2_million", [] { return times(piece("a"), 2'000'000); },
          "more than the 1048576 tokens"),
      file(
          "self_test_1_mib",
          [] { return model(field(4, field(1, field(1, times("a", kMiB)) + field(2, "b")))); },
          "texts to test it with"),
      file(
          "map_leads_out", [] { return model_with_map(0, 0x1FFFFFU << 10U); },
          "leads out of its own table"),
      file(
          "map_leads_out_below", [] { return model_with_map(256U ^ 'a', 'a' | 0x1FFFFFU << 10U); },
          "leads out of its own table"),
      file(
          "map_value_outside", [] { return model_with_map(512, 0x80000002U); },
          "leads out of its own table"),
      file(
          "map_shorter_than_it_says",
          [] {
            return model(field(3, field(2, std::string("\xFF\xFF\xFF\x7F") + times("x", 64))));
          },
          "leads out of its own table"),
      file(
          "map_of_output", [] { return model(field(5, field(2, "\x04"))); },
          "leads out of its own table"),
  };
}

INSTANTIATE_TEST_SUITE_P(Json, HostileFiles, ::testing::ValuesIn(json_files()), hostile_name);
INSTANTIATE_TEST_SUITE_P(SplitPattern, HostileFiles, ::testing::ValuesIn(split_patterns()),
                         hostile_name);
INSTANTIATE_TEST_SUITE_P(RankTable, HostileFiles, ::testing::ValuesIn(rank_tables()), hostile_name);
INSTANTIATE_TEST_SUITE_P(SentencePiece, HostileFiles, ::testing::ValuesIn(sentencepiece_files()),
                         hostile_name);

TEST(HostileTokenizers, HolesAreNotRead) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json"}) {
    const TempFolder folder;
    write_file(folder / "tokenizer.json", "{}");
    write_file(folder / name, "");
    if (name == std::string_view("tokenizer.model"))
      std::filesystem::remove(folder / "tokenizer.json");
    std::filesystem::resize_file(folder / name, std::uintmax_t{1} << 36U);
    expect_refused({name, name, read_tokenizer, {}, "bytes, more than"}, folder.path(), 0);
  }
}

TEST(HostileTokenizers, AMapThatStaysInItsTableIsTaken) {
  EXPECT_TRUE(is_sound_character_map(character_map(small_trie())));
  std::vector<std::uint32_t> loop = small_trie();
  loop[256U ^ 'a'] = 'a' | (256U ^ 'a' ^ 256U) << 10U;  // "a" leads to where it came from
  EXPECT_TRUE(is_sound_character_map(character_map(loop)));
  const TempFolder folder;
  write_file(folder / "tokenizer.model",
             piece("<unk>", 2) + piece("b") + field(2, field(3, std::uint64_t{2})) +
                 field(3, field(2, character_map(small_trie())) + field(3, std::uint64_t{0})));
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.encode("a", {}), tokenizer.encode("b", {}));
}

}  // namespace
}  // namespace fut::test
