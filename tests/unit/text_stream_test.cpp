// A stream of token bytes shows whole characters only, holds back no more than it must, and loses
// nothing.
#include "tokenizer/text_stream.h"

#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "tokenizer/utf8.h"

namespace fut {
namespace {

// What each push shows, then what flush shows.
std::vector<std::string> shown(const std::vector<std::string>& pushes) {
  TextStream stream;
  std::vector<std::string> out;
  for (const std::string& bytes : pushes) out.push_back(stream.push(bytes));
  out.push_back(stream.flush());
  return out;
}

using Strings = std::vector<std::string>;

TEST(TextStream, PassesPlainTextOnAtOnce) {
  EXPECT_EQ(shown({"Hel", "lo", "", " é日😀"}), (Strings{"Hel", "lo", "", " é日😀", ""}));
}

TEST(TextStream, ShowsACharacterWithTheByteThatCompletesIt) {
  EXPECT_EQ(shown({"\xF0", "\x9F", "\x98", "\x80", "!"}), (Strings{"", "", "", "😀", "!", ""}));
  EXPECT_EQ(shown({"a\xE6", "\x97", "\xA5z"}), (Strings{"a", "", "日z", ""}));
  EXPECT_EQ(shown({"\xC3", "\xA9"}), (Strings{"", "é", ""}));
}

TEST(TextStream, OneTokenMayEndACharacterAndBeginTheNext) {
  EXPECT_EQ(shown({"\xF0\x9F\x98", "\x80\xF0", "\x9F\x98\x80"}), (Strings{"", "😀", "😀", ""}));
}

TEST(TextStream, JoinedEmojiComeCharacterByCharacter) {
  const std::string family = "👨‍👩‍👧‍👦";
  TextStream stream;
  std::string all;
  for (const char byte : family) {
    const std::string chunk = stream.push({&byte, 1});
    EXPECT_EQ(utf8::valid_run(chunk, 0), chunk.size());
    all += chunk;
  }
  EXPECT_EQ(all, family);
  EXPECT_EQ(stream.flush(), "");
}

TEST(TextStream, BytesThatCannotBecomeACharacterAreReleasedAtOnce) {
  EXPECT_EQ(shown({"\xFF"}), (Strings{"\xFF", ""}));
  EXPECT_EQ(shown({"\x80"}), (Strings{"\x80", ""}));                  // no lead byte
  EXPECT_EQ(shown({"\xC0"}), (Strings{"\xC0", ""}));                  // only overlong forms
  EXPECT_EQ(shown({"\xE0", "\x80"}), (Strings{"", "\xE0\x80", ""}));  // overlong
  EXPECT_EQ(shown({"\xED", "\xA0"}), (Strings{"", "\xED\xA0", ""}));  // a surrogate
  EXPECT_EQ(shown({"\xF4", "\x90"}), (Strings{"", "\xF4\x90", ""}));  // above U+10FFFF
  EXPECT_EQ(shown({"\xF5"}), (Strings{"\xF5", ""}));                  // no such lead byte
  EXPECT_EQ(shown({"\xF0\x9F", "A"}), (Strings{"",
                                               "\xF0\x9F"
                                               "A",
                                               ""}));
  EXPECT_EQ(shown({"\xE6\x97", "\xE6"}), (Strings{"", "\xE6\x97", "\xE6"}));
}

TEST(TextStream, FlushGivesWhatIsLeftAndEmptiesTheStream) {
  TextStream stream;
  EXPECT_EQ(stream.push("a\xF0\x9F\x98"), "a");
  EXPECT_EQ(stream.flush(), "\xF0\x9F\x98");
  EXPECT_EQ(stream.flush(), "");
  EXPECT_EQ(stream.push("\x80"), "\x80");
}

// However a valid text is cut: nothing is lost, every chunk is valid, and only an unfinished
// character is ever held back.
TEST(TextStream, AnyCutOfAnyTextComesBackWhole) {
  std::mt19937 random(1);
  const std::string text = "aé日😀 ß\n👨‍👩‍👧 ½ \xE2\x96\x81z";
  for (int round = 0; round < 200; ++round) {
    TextStream stream;
    std::string out;
    std::size_t given = 0;
    while (given < text.size()) {
      const std::size_t take = std::min<std::size_t>(random() % 5, text.size() - given);
      const std::string chunk = stream.push(text.substr(given, take));
      given += take;
      EXPECT_EQ(utf8::valid_run(chunk, 0), chunk.size());
      out += chunk;
      EXPECT_EQ(utf8::unfinished_tail(text.substr(0, given)), given - out.size());
    }
    EXPECT_EQ(stream.flush(), "");
    EXPECT_EQ(out, text);
  }
}

TEST(TextStream, AnyBytesComeBackInOrder) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    TextStream stream;
    std::string given;
    std::string out;
    for (int i = 0; i < 20; ++i) {
      std::string bytes;
      for (std::size_t n = random() % 4; n > 0; --n) {
        bytes += static_cast<char>(random() % 4 == 0 ? random() : 0x80 + random() % 0x80);
      }
      given += bytes;
      out += stream.push(bytes);
      EXPECT_LE(given.size() - out.size(), 3U);
    }
    EXPECT_EQ(out + stream.flush(), given);
  }
}

}  // namespace
}  // namespace fut
