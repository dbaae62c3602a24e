// The small parts below the tokenizers, each alone: UTF-8, base64, SHA-256, merging, the search for
// special tokens, the split pattern as an engine.
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tokenizer/base64.h"
#include "tokenizer/bpe_merge.h"
#include "tokenizer/sha256.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/split_pattern.h"
#include "tokenizer/utf8.h"

namespace fut {
namespace {

TEST(Utf8, AcceptsEveryScalarValueAndNothingElse) {
  for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 61) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    utf8::append(text, c);
    ASSERT_EQ(utf8::char_length(text, 0), text.size()) << static_cast<unsigned>(c);
    ASSERT_EQ(utf8::code_point(text, 0, text.size()), c);
  }
  for (const char* bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80",
                          "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF8\x88\x80",
                          "\xFF", "\xE6\x97", "\xE6\x97z", "\xF0\x9F\x98"}) {
    EXPECT_EQ(utf8::char_length(bad, 0), 0U) << bad;
  }
}

TEST(Utf8, CutsATextIntoValidAndInvalidRuns) {
  const std::string text = "eight bytes and more\xFF\x80\xC3\xA9z";
  EXPECT_EQ(utf8::valid_run(text, 0), 20U);
  EXPECT_EQ(utf8::invalid_run(text, 20), 2U);
  EXPECT_EQ(utf8::valid_run(text, 22), 3U);
}

TEST(Base64, DecodesWhatTheStandardGives) {
  const std::pair<const char*, const char*> cases[] = {
      {"", ""}, {"Zg==", "f"}, {"Zm8=", "fo"}, {"Zm9v", "foo"}, {"+/+/", "\xFB\xFF\xBF"}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(base64_decode(text), bytes) << text;
}

TEST(Base64, RefusesWhatIsNotBase64) {
  for (const char* bad : {"Zg", "Zg=", "Z===", "Zh==", "Z g=", "Zg==Zg==", "Zm9-", "====", "="}) {
    EXPECT_EQ(base64_decode(bad), std::nullopt) << bad;
  }
}

TEST(Sha256, GivesThePublishedDigests) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Merging by the rule alone: look through everything, merge the best, begin again.
std::vector<TokenId> merge_plainly(const MergeTable& table, std::vector<TokenId> symbols) {
  while (true) {
    std::size_t best = symbols.size();
    std::uint32_t best_rank = std::numeric_limits<std::uint32_t>::max();
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const Merge* merge = table.find(symbols[i], symbols[i + 1]);
      if (merge == nullptr || merge->rank >= best_rank) continue;
      best = i;
      best_rank = merge->rank;
    }
    if (best == symbols.size()) return symbols;
    symbols[best] = table.find(symbols[best], symbols[best + 1])->result;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(BpeMerge, FollowsTheRuleForShortAndLongPieces) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const TokenId letters = 2 + static_cast<TokenId>(random() % 3);
    MergeTable table(40);
    std::uint32_t rank = 0;
    for (TokenId result = letters; result < letters + 30; ++result) {
      const auto part = [&] {
        return static_cast<TokenId>(random() % static_cast<unsigned>(result));
      };
      // Some pairs share their rank, as pairs with the same result do in a rank table.
      table.insert(part(), part(), {rank, result});
      if (random() % 3 == 0) table.insert(part(), part(), {rank, result});
      ++rank;
    }
    std::vector<TokenId> symbols(random() % 120);
    for (TokenId& symbol : symbols) symbol = static_cast<TokenId>(random()) % letters;
    for (TokenId& symbol : symbols) symbol = std::abs(symbol);
    std::vector<TokenId> merged = symbols;
    merge_symbols(table, merged);
    ASSERT_EQ(merged, merge_plainly(table, symbols)) << "round " << round;
  }
}

TEST(BpeMerge, TheLastRankGivenToAPairCounts) {
  MergeTable table(3);
  table.insert(0, 1, {5, 10});
  table.insert(1, 0, {4, 11});
  table.insert(0, 1, {1, 12});
  std::vector<TokenId> symbols = {0, 1, 0};
  merge_symbols(table, symbols);
  EXPECT_EQ(symbols, (std::vector<TokenId>{12, 0}));
}

std::vector<AddedToken> tokens(std::initializer_list<const char*> texts) {
  std::vector<AddedToken> list;
  for (const char* text : texts) {
    AddedToken token;
    token.id = static_cast<TokenId>(list.size());
    token.text = text;
    list.push_back(token);
  }
  return list;
}

TEST(SpecialTokens, TheLeftmostAndOfThoseTheLongestIsFound) {
  const SpecialTokenMatcher matcher(tokens({"<a>", "<a><b>", "b>c", "<"}));
  const auto match = matcher.next("x<a><b>c", 0);
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->id, 1);
  EXPECT_EQ(match->begin, 1U);
  EXPECT_EQ(match->end, 7U);
  EXPECT_EQ(matcher.next("x<a<", 0)->id, 3);
  EXPECT_EQ(matcher.next("b>", 0), std::nullopt);
  EXPECT_EQ(matcher.next("", 0), std::nullopt);
  EXPECT_EQ(SpecialTokenMatcher().next("<a>", 0), std::nullopt);
}

TEST(SpecialTokens, SwallowWhiteSpaceWhereTheySaySo) {
  auto list = tokens({"<l>", "<r>"});
  list[0].takes_left = true;
  list[1].takes_right = true;
  const SpecialTokenMatcher matcher(list);
  const std::string text = "a \u3000\n<l> b <r> \t\u00A0c";
  const auto left = matcher.next(text, 0);
  EXPECT_EQ(text.substr(left->begin, left->end - left->begin), " \u3000\n<l>");
  const auto right = matcher.next(text, left->end);
  EXPECT_EQ(text.substr(right->begin, right->end - right->begin), "<r> \t\u00A0");
  EXPECT_EQ(matcher.next("  <l>", 2)->begin, 2U);  // never reaches back before its start
}

std::vector<std::string> pieces(const SplitPattern& pattern, std::string_view text) {
  std::vector<std::string> out;
  pattern.split(text, [&](std::string_view piece) { out.emplace_back(piece); });
  return out;
}

using Strings = std::vector<std::string>;

TEST(SplitPattern, WhatLiesBetweenMatchesIsAPieceToo) {
  const SplitPattern digits("[0-9]+", "file");
  EXPECT_EQ(pieces(digits, "ab12c3"), (Strings{"ab", "12", "c", "3"}));
  EXPECT_EQ(pieces(digits, "abc"), (Strings{"abc"}));
}

TEST(SplitPattern, EmptyMatchesDoNotStopIt) {
  EXPECT_EQ(pieces(SplitPattern("x*", "file"), "é日xxz"), (Strings{"é日", "xx", "z"}));
  EXPECT_EQ(pieces(SplitPattern("", "file"), "abc"), (Strings{"abc"}));
}

TEST(SplitPattern, BlanksAreThoseOfUnicode) {
  const SplitPattern blanks("\\s+", "file");
  // U+180E was a blank once and is none now; U+0085 and U+3000 are.
  EXPECT_EQ(pieces(blanks, "a\u180Eb\u0085\u3000c"), (Strings{"a\u180Eb", "\u0085\u3000", "c"}));
  EXPECT_EQ(pieces(SplitPattern("[^\\S\n]+|\\\\s", "file"), "a \n\\s"),
            (Strings{"a", " ", "\n", "\\s"}));
}

TEST(SplitPattern, OneThatDoesNotCompileIsNamedWithItsFile) {
  const std::string message =
      test::error_message(ErrorKind::Data, [] { SplitPattern("a(b", "some/tokenizer.json"); });
  test::expect_mentions(message, {"some/tokenizer.json", "byte 3"});
}

TEST(SplitPattern, OneThatNeverEndsIsStopped) {
  const SplitPattern endless("^(a+)+$", "some/tokenizer.json");
  const std::string message = test::error_message(
      ErrorKind::Data, [&] { static_cast<void>(pieces(endless, std::string(40, 'a') + "b")); });
  test::expect_mentions(message, {"some/tokenizer.json", "41 bytes"});
}

}  // namespace
}  // namespace fut
