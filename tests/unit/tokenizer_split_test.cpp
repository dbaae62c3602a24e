// How Llama 3's split pattern cuts a text into pieces. The demonstration model has that pattern.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "tests/support/test_data.h"
#include "tokenizer/tokenizer.h"

namespace fut {
namespace {

using Strings = std::vector<std::string>;

Tokenizer demo() {
  return Tokenizer::load(test::source_path("configs/demo-6m"));
}

std::string joined(const Strings& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

TEST(Llama3Split, NumbersAreCutFromTheLeftInThrees) {
  const Tokenizer tokenizer = demo();
  EXPECT_EQ(tokenizer.split("3333+777"), (Strings{"333", "3", "+", "777"}));
  EXPECT_EQ(tokenizer.split("1234567"), (Strings{"123", "456", "7"}));
  EXPECT_EQ(tokenizer.split("٣٤٥٦"), (Strings{"٣٤٥", "٦"}));
  EXPECT_EQ(tokenizer.split("½²Ⅷ4"), (Strings{"½²Ⅷ", "4"}));
  EXPECT_EQ(tokenizer.split("日本語123語"), (Strings{"日本語", "123", "語"}));
}

TEST(Llama3Split, ContractionsComeOffInEitherCase) {
  const Tokenizer tokenizer = demo();
  EXPECT_EQ(tokenizer.split("I'LL we'd don't"), (Strings{"I", "'LL", " we", "'d", " don", "'t"}));
  EXPECT_EQ(tokenizer.split("'sad"), (Strings{"'s", "ad"}));
  EXPECT_EQ(tokenizer.split("don’t"), (Strings{"don", "’t"}));
}

TEST(Llama3Split, TheLastBlankGoesWithTheWord) {
  const Tokenizer tokenizer = demo();
  EXPECT_EQ(tokenizer.split("a  b"), (Strings{"a", " ", " b"}));
  EXPECT_EQ(tokenizer.split("x   "), (Strings{"x", "   "}));
  EXPECT_EQ(tokenizer.split("a\tb"), (Strings{"a", "\tb"}));
  EXPECT_EQ(tokenizer.split("\u00A0\u3000a"), (Strings{"\u00A0", "\u3000a"}));
}

TEST(Llama3Split, LineBreaksTakeTheBlanksBeforeThem) {
  const Tokenizer tokenizer = demo();
  EXPECT_EQ(tokenizer.split("a\n\n b"), (Strings{"a", "\n\n", " b"}));
  EXPECT_EQ(tokenizer.split("  \n  \n x"), (Strings{"  \n  \n", " x"}));
  EXPECT_EQ(tokenizer.split("!!\n\n\n?"), (Strings{"!!\n\n\n", "?"}));
}

TEST(Llama3Split, AccentsInTwoPartsAreNoLetters) {
  EXPECT_EQ(demo().split("e\u0301a"), (Strings{"e", "\u0301a"}));
}

TEST(Llama3Split, AnEmptyTextHasNoPieces) {
  EXPECT_EQ(demo().split(""), Strings{});
}

TEST(Llama3Split, SpecialTokensAreOnePieceOrPlainText) {
  const Tokenizer tokenizer = demo();
  EXPECT_EQ(tokenizer.split("a<|eot_id|> b"), (Strings{"a", "<|eot_id|>", " b"}));
  EXPECT_EQ(tokenizer.split("a<|eot_id|>", false), (Strings{"a", "<|", "eot", "_id", "|>"}));
}

TEST(Llama3Split, BytesThatAreNotUtf8StandAlone) {
  EXPECT_EQ(demo().split("ab\xFF\xFE"
                         "cd"),
            (Strings{"ab", "\xFF\xFE", "cd"}));
}

// The guard is for what is quadratic (minutes), not for speed.
TEST(Llama3Split, LongRunsOfOneKindAreOnePieceAndQuick) {
  const Tokenizer tokenizer = demo();
  constexpr std::size_t kLong = 1000000;
  const std::string blanks(kLong, ' ');
  EXPECT_EQ(tokenizer.split(std::string(kLong, 'a')).size(), 1U);
  EXPECT_EQ(tokenizer.split(blanks).size(), 1U);
  EXPECT_EQ(tokenizer.split(std::string(kLong, '\n')).size(), 1U);
  const Strings before_word = tokenizer.split(blanks + "x");
  ASSERT_EQ(before_word.size(), 2U);
  EXPECT_EQ(before_word[1], " x");
  const Strings after_break = tokenizer.split("\n" + blanks + "x");
  ASSERT_EQ(after_break.size(), 3U);
  EXPECT_EQ(after_break[0], "\n");
}

TEST(Llama3Split, PiecesJoinToTheTextWhateverItIs) {
  const Tokenizer tokenizer = demo();
  std::mt19937 random(4);
  const Strings parts = {"a",         "Ab",       " ",
                         "  ",        "\n",       "\r\n",
                         "\t",        "1",        "234567",
                         "'s",        "'LL",      "é",
                         "日",        "😀",        "½",
                         "\u00A0",    "!",        "...",
                         "\xFF",      "\xE6\x97", std::string(1, '\0'),
                         "_",         "\u180E",   "\xED\xA0\x80",
                         "<|eot_id|>"};
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (std::size_t n = random() % 12; n > 0; --n) text += parts[random() % parts.size()];
    EXPECT_EQ(joined(tokenizer.split(text)), text);
    EXPECT_EQ(joined(tokenizer.split(text, false)), text);
  }
}

}  // namespace
}  // namespace fut
