// The parts of the chat that need neither a model nor a terminal: completion, stored history, wide
// characters, pasted text.
#include <algorithm>
#include <chrono>
#include <fcntl.h>
#include <future>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include "apps/chat/completion.h"
#include "apps/chat/history_file.h"
#include "apps/escape.h"
#include "apps/wide_text.h"
#include "tests/support/temp_folder.h"

namespace fut::app {
namespace {

using Names = std::vector<std::string>;

const CompletionWords kWords = {{"/help", "/set", "/stats", "/status", "/load"},
                                {"seed", "temp", "top-k", "top-p"},
                                "/set",
                                {"/load"}};

TEST(Completion, CompletesWhatIsCertainAndListsTheRest) {
  EXPECT_EQ(complete("/h", kWords).insert, "elp ");
  EXPECT_EQ(complete("/sta", kWords).insert, "t");
  EXPECT_EQ(complete("/stat", kWords).insert, "");
  EXPECT_EQ(complete("/stat", kWords).choices, (Names{"/stats", "/status"}));
  EXPECT_EQ(complete("/set te", kWords).insert, "mp ");
  EXPECT_EQ(complete("/set top-", kWords).choices, (Names{"top-k", "top-p"}));
  EXPECT_EQ(complete("/set t", kWords).choices.size(), 3U);
}

TEST(Completion, SaysNothingWhereThereIsNothingToSay) {
  for (const char* line : {"", "hello", "/zzz", "/help x", "/set temp 0", " /he", "/he\nlp"}) {
    EXPECT_EQ(complete(line, kWords).insert, "") << line;
    EXPECT_TRUE(complete(line, kWords).choices.empty()) << line;
  }
}

TEST(Completion, KnowsFilesAndFolders) {
  const test::TempFolder folder;
  std::filesystem::create_directory(folder.path() / "talks");
  test::write_file(folder.path() / "talks" / "m\u00e4rz.json", "");
  test::write_file(folder.path() / "talks" / "m\u00e9.json", "");
  const std::string path = "/load " + folder.path().string();
  EXPECT_EQ(complete(path + "/ta", kWords).insert, "lks/");
  // The two differ within a character, which is not cut.
  EXPECT_EQ(complete(path + "/talks/", kWords).insert, "m");
  EXPECT_EQ(complete(path + "/talks/m\u00e4", kWords).insert, "rz.json");
}

TEST(HistoryFile, KeepsEntriesOfAnyTextPrivately) {
  const test::TempFolder folder;
  const std::filesystem::path file = folder.path() / "a" / "b" / "history";
  const Names entries = {"hello", "two\nlines", "back\\slash", "\\n is no newline", "\u65e5\u672c",
                         ""};
  for (const std::string& entry : entries) EXPECT_TRUE(append_history(file, entry));
  EXPECT_EQ(read_history(file), entries);
  EXPECT_EQ(std::filesystem::status(file).permissions(), std::filesystem::perms(0600));
}

TEST(HistoryFile, DoesNotGrowForEver) {
  const test::TempFolder folder;
  const std::filesystem::path file = folder.path() / "history";
  std::string bytes;
  for (std::size_t i = 0; i < 2 * kHistoryEntries + 1; ++i) bytes += std::to_string(i) + "\n";
  test::write_file(file, bytes);
  const Names entries = read_history(file);
  ASSERT_EQ(entries.size(), kHistoryEntries);
  EXPECT_EQ(entries.back(), std::to_string(2 * kHistoryEntries));
  EXPECT_EQ(std::ranges::count(test::read_file(file), '\n'),
            static_cast<std::ptrdiff_t>(kHistoryEntries));
  EXPECT_EQ(read_history(file), entries);
}

TEST(HistoryFile, IsMadePrivateAndWaitsForWhoeverHoldsIt) {
  const test::TempFolder folder;
  const std::filesystem::path file = folder.path() / "history";
  test::write_file(file, "old\n");
  std::filesystem::permissions(file, std::filesystem::perms(0644));
  const int held = ::open(file.c_str(), O_RDONLY);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  auto appended = std::async(std::launch::async, [&] { return append_history(file, "new"); });
  EXPECT_EQ(appended.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  // Another file takes its place meanwhile, as in a rewriting: the entry goes there.
  test::write_file(folder.path() / "aside", "kept\n");
  std::filesystem::rename(folder.path() / "aside", file);
  ::close(held);
  EXPECT_TRUE(appended.get());
  EXPECT_EQ(read_history(file), (Names{"kept", "new"}));
  EXPECT_EQ(std::filesystem::status(file).permissions(), std::filesystem::perms(0600));
}

TEST(HistoryFile, IsNeverAReasonToFail) {
  const test::TempFolder folder;
  EXPECT_TRUE(read_history({}).empty());
  EXPECT_TRUE(read_history(folder.path()).empty());
  EXPECT_TRUE(read_history(folder.path() / "missing").empty());
  EXPECT_FALSE(append_history(folder.path(), "a"));
  EXPECT_FALSE(append_history("/dev/full", "a"));
}

TEST(WideText, GoesThereAndBack) {
  for (const std::string text : {"", "plain", "\u00e9\u65e5\u672c\U0001F600e\u0301", "a\nb\t"}) {
    EXPECT_EQ(to_utf8(to_wide(text)), text);
  }
  EXPECT_EQ(to_wide("\u65e5x").size(), 2U);
}

TEST(WideText, MarksWhatIsNotUtf8) {
  EXPECT_EQ(to_wide("a\xFF"), L"a\uFFFD");
  EXPECT_EQ(to_wide("\xE6\x97"), L"\uFFFD");          // cut short
  EXPECT_EQ(to_wide("\xC0\x80"), L"\uFFFD");          // too long for what it is
  EXPECT_EQ(to_wide("\xED\xA0\x80"), L"\uFFFD");      // half of a pair
  EXPECT_EQ(to_wide("\xF4\x90\x80\x80"), L"\uFFFD");  // beyond the last one
}

TEST(Escape, SpellsOutWhatATerminalWouldObey) {
  EXPECT_EQ(escape_controls("a\n\033[m\x7F\\"), "a\\n\\x1B[m\\x7F\\\\");
  EXPECT_EQ(escape_controls("\xC2\x9B"
                            "2J\xC2\x80\xC2\x9F"),
            "\\xC2\\x9B2J\\xC2\\x80\\xC2\\x9F");
  EXPECT_EQ(escape_controls("\xC2\xA0\xC3\x9B\xE2\x82\xAC"), "\xC2\xA0\xC3\x9B\xE2\x82\xAC");
  EXPECT_EQ(escape_controls("\x9B\xC2"), "\\x9B\\xC2");
  EXPECT_EQ(escape_controls_in_lines("a\n\\b\033\t\xC2\x9B"), "a\n\\b\\x1B\\t\\xC2\\x9B");
}

TEST(WideText, PastedTextHoldsNoControls) {
  EXPECT_EQ(pasted_text("a\r\nb\rc\nd"), L"a\nb\nc\nd");
  EXPECT_EQ(pasted_text("a\tb\033[2Jc\x07\x7F\xC2\x9B"), L"a\tb[2Jc");
}

}  // namespace
}  // namespace fut::app
