// Stop strings in a stream of pieces: what is released, and when.
#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include "kernels/error.h"

namespace fut {
namespace {

std::string stream(StopMatcher& matcher, const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += matcher.push(piece);
  return text + matcher.flush();
}

TEST(StopMatcher, StringOverSeveralPiecesIsCutOutWhole) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(stream(matcher, {"Hel", "lo", " EN", "D!", " more"}), "Hello ");
  EXPECT_EQ(matcher.matched(), "END");
}

TEST(StopMatcher, TextThatOnlyLookedLikeAStartIsReleased) {
  StopMatcher matcher({"ENX"});
  EXPECT_EQ(stream(matcher, {"Hel", "lo", " EN", "D!", " more"}), "Hello END! more");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, AStartAtTheVeryEndIsReleasedByFlush) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.push("Hello EN"), "Hello ");
  EXPECT_EQ(matcher.flush(), "EN");
}

TEST(StopMatcher, TheEarliestOfSeveralStringsWins) {
  StopMatcher matcher({"END", "lo"});
  EXPECT_EQ(stream(matcher, {"Hel", "lo", " EN", "D!"}), "Hel");
  EXPECT_EQ(matcher.matched(), "lo");
}

TEST(StopMatcher, AtTheSamePlaceTheLongestWins) {
  StopMatcher matcher({"ab", "abc"});
  EXPECT_EQ(matcher.push("xabc"), "x");
  EXPECT_EQ(matcher.matched(), "abc");
}

TEST(StopMatcher, OverlappingStartsAreFollowed) {
  StopMatcher matcher({"aab"});
  EXPECT_EQ(stream(matcher, {"aa", "a", "b"}), "a");
  EXPECT_EQ(matcher.matched(), "aab");
}

TEST(StopMatcher, MatchesBytesInsideACharacter) {
  StopMatcher matcher({"\xC3\xA9"});
  EXPECT_EQ(stream(matcher, {"caf\xC3", "\xA9 noir"}), "caf");
}

TEST(StopMatcher, HoldsBackLessThanAStopStringIsLong) {
  StopMatcher matcher({"aaaa"});
  std::size_t pushed = 0;
  std::size_t released = 0;
  for (const char* piece : {"a", "a", "a", "b", "a", "a", "a", "c"}) {
    released += matcher.push(piece).size();
    ++pushed;
    EXPECT_LT(pushed - released, 4U);
  }
}

TEST(StopMatcher, NothingFollowsAMatch) {
  StopMatcher matcher({"x"});
  EXPECT_EQ(matcher.push("axb"), "a");
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, WithoutStringsEverythingPassesAtOnce) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.push("abc"), "abc");
}

TEST(StopMatcher, AnEmptyStringIsRefused) {
  try {
    StopMatcher matcher({"a", ""});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Usage);
  }
}

}  // namespace
}  // namespace fut
