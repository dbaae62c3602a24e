// A chat on a terminal that can move its cursor: editing, history, completion, pasted text, wide
// characters, a changed size, Ctrl-C, and what happens at the end of the context.
#include <csignal>

#include "tests/cli/chat_case.h"

namespace fut::test {
namespace {

constexpr const char* kUp = "\033[A";
constexpr const char* kLeft = "\033[D";
constexpr const char* kEnter = "\r";

std::string pasted(const std::string& text) {
  return "\033[200~" + text + "\033[201~";
}

class ChatEditor : public ChatCase {
 protected:
  [[nodiscard]] ProcessOptions options(const std::string& which,
                                       std::vector<std::string> more = {}) const {
    ProcessOptions o;
    o.arguments = {"chat", "-m", which};
    o.arguments.insert(o.arguments.end(), more.begin(), more.end());
    o.input_kind = ProcessOptions::Input::Terminal;
    o.error_to_terminal = true;
    o.environment = {{"TERM", "xterm"},
                     {"XDG_STATE_HOME", (folder.path() / "state").string()},
                     {"HOME", folder.path().string()},
                     {"LC_ALL", "C"},
                     {"NO_COLOR", "1"}};  // so that the prompt is "> " in one piece
    return on_cpu_in_f32(std::move(o));
  }
  [[nodiscard]] std::filesystem::path history() const {
    return folder.path() / "state" / "fut" / "chat_history";
  }
  // Types `keys` at a prompt; what was said in the turn that they make.
  std::string said(const std::string& keys, std::vector<std::string> more = {}) {
    std::filesystem::remove(file("said.json"));
    Process process(FUT_BINARY, options(model, std::move(more)));
    EXPECT_TRUE(process.wait_for_terminal("> "));
    process.write(keys);
    EXPECT_TRUE(process.wait_for_output("Hi\n")) << process.finish().terminal;
    EXPECT_TRUE(process.wait_for_terminal("> "));
    process.write("/save " + file("said.json") + kEnter);
    EXPECT_TRUE(process.wait_for_terminal("saved as"));
    process.write("\x04");
    const ProcessResult result = process.finish();
    EXPECT_EQ(result.exit_code, 0) << result.terminal;
    const auto talk = nlohmann::json::parse(read_file(file("said.json")));
    return talk.at(talk.size() - 2).at("content");
  }
};

TEST_F(ChatEditor, LinesCanBeEdited) {
  EXPECT_EQ(said(std::string("helo") + kLeft + "l" + kEnter), "hello");
  EXPECT_EQ(said("wrong\x15right\r"), "right");               // Ctrl-U
  EXPECT_EQ(said("world\x01hello \x05!\r"), "hello world!");  // Ctrl-A, Ctrl-E
}

TEST_F(ChatEditor, WideCharactersAreOneCharacterEach) {
  EXPECT_EQ(said("日本語\x7F\x7F月\r"), "日月");
  EXPECT_EQ(said(std::string("a😀b") + kLeft + kLeft + kLeft + "é" + kEnter), "éa😀b");
  EXPECT_EQ(said(std::string(200, 'x') + "日\x7Fy\r"), std::string(200, 'x') + "y");  // wraps
}

TEST_F(ChatEditor, APasteOfSeveralLinesIsOneTurn) {
  EXPECT_EQ(said(pasted("first\rsecond\r\rthird") + kEnter), "first\nsecond\n\nthird");
  EXPECT_EQ(said("see: " + pasted("a\nb") + " ok" + kEnter), "see: a\nb ok");
  EXPECT_EQ(said(pasted("/exit\n/etc/hosts") + kEnter), "/exit\n/etc/hosts");
  EXPECT_EQ(said(pasted("\033[31mred\x07") + kEnter), "[31mred");
  const std::string large(900, 'p');
  EXPECT_EQ(said(pasted(large) + kEnter), large);
}

TEST_F(ChatEditor, APasteIsTextWhateverKeysItsCharactersAre) {
  // Ctrl-C, Ctrl-Z, Ctrl-\, Ctrl-D, Ctrl-S.
  EXPECT_EQ(said(pasted("a\x03 b\x1A c\x1C d\x04 e\x13 f") + kEnter), "a b c d e f");
  EXPECT_EQ(said(pasted("ends with\x03") + "!" + kEnter), "ends with!");
}

TEST_F(ChatEditor, ControlCEndsAPasteWhoseEndIsLost) {
  Process process(FUT_BINARY, options(model));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("\033[200~never to end\x03");
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("hello\r");
  ASSERT_TRUE(process.wait_for_output("Hi\n"));
  process.write("\x04");
  EXPECT_EQ(process.finish().exit_code, 0);
}

TEST_F(ChatEditor, ABlockOfLinesIsOneTurn) {
  EXPECT_EQ(said("\"\"\"\rone\r/exit\r\"\"\"\r"), "one\n/exit");
}

TEST_F(ChatEditor, WhatWasTypedComesBackInTheNextChat) {
  EXPECT_EQ(said("remember me\r"), "remember me");
  EXPECT_TRUE(std::filesystem::exists(history()));
  // The newest entry is the /save.
  EXPECT_EQ(said(std::string(kUp) + kUp + kEnter), "remember me");
  EXPECT_EQ(said("\x12rememb\033\r"), "remember me");  // Ctrl-R finds it
}

TEST_F(ChatEditor, NothingIsStoredOnRequest) {
  EXPECT_EQ(said("secret\r", {"--no-history"}), "secret");
  EXPECT_FALSE(std::filesystem::exists(history()));
  EXPECT_EQ(said("kept\r", {"--history-file", file("mine")}), "kept");
  EXPECT_NE(read_file(file("mine")).find("kept"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(history()));
}

TEST_F(ChatEditor, HistoryCanBeSwitchedOffOnTheWay) {
  Process process(FUT_BINARY, options(model));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("/set history off\r");
  ASSERT_TRUE(process.wait_for_terminal("not stored"));
  process.write("secret\r");
  ASSERT_TRUE(process.wait_for_output("Hi\n"));
  process.write("\x04");
  EXPECT_EQ(process.finish().exit_code, 0);
  EXPECT_EQ(read_file(history()).find("secret"), std::string::npos);
}

TEST_F(ChatEditor, TabCompletesCommands) {
  Process process(FUT_BINARY, options(model));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("/he\t\r");
  EXPECT_TRUE(process.wait_for_terminal("/regen"));
  EXPECT_TRUE(process.wait_for_terminal("> "));
  process.write("/sta\t\t");
  EXPECT_TRUE(process.wait_for_terminal("/stats  /status"));
  process.write("us\r");
  EXPECT_TRUE(process.wait_for_terminal("template"));
  write_file(file("talk.json"), "[]");  // in the home folder
  process.write("/load ~/ta\t\r");
  EXPECT_TRUE(process.wait_for_terminal("loaded " + file("talk.json")));
  process.write("\x04");
  EXPECT_EQ(process.finish().exit_code, 0);
}

TEST_F(ChatEditor, TabListsFilesWithoutObeyingTheirNames) {
  write_file(file("one.json"), "[]");
  write_file(file("o\033]0;title\007.json"), "[]");
  Process process(FUT_BINARY, options(model));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("/load " + file("o") + "\t\t");
  EXPECT_TRUE(process.wait_for_terminal("one.json"));
  process.write("\x15\x04");
  const ProcessResult result = process.finish();
  EXPECT_NE(result.terminal.find("\\x1B]0;title\\x07.json"), std::string::npos) << result.terminal;
  EXPECT_EQ(result.terminal.find("\033]0;"), std::string::npos);
}

TEST_F(ChatEditor, AChangedSizeIsFollowed) {
  Process process(FUT_BINARY, options(model));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.resize(80, 24);
  process.write("a long line that will not fit into so few columns");
  ASSERT_TRUE(process.wait_for_terminal("columns"));
  process.resize(20, 10);
  ASSERT_TRUE(process.wait_for_terminal("columns")) << "drawn anew";
  process.write("!\r");
  EXPECT_TRUE(process.wait_for_output("Hi\n"));
  process.write("\x04");
  EXPECT_EQ(process.finish().exit_code, 0);
}

TEST_F(ChatEditor, ControlCTakesTypedTextAwayAndLeavesAtTheSecondEmptyPrompt) {
  Process process(FUT_BINARY, options(model));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("never mind");
  ASSERT_TRUE(process.wait_for_terminal("mind"));
  process.write("\x03");
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("\x03");
  ASSERT_TRUE(process.wait_for_terminal("to leave"));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("hello\r");
  ASSERT_TRUE(process.wait_for_output("Hi\n"));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("\x03");
  ASSERT_TRUE(process.wait_for_terminal("to leave"));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("\x03");
  EXPECT_EQ(process.finish().exit_code, 130);
}

TEST_F(ChatEditor, ControlCStopsAReplyWhichIsKept) {
  Process process(FUT_BINARY, options(endless_model, {"-n", "-1"}));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("hello\r");
  ASSERT_TRUE(process.wait_for_output("tick-tocktick"));
  process.write("\x03");
  ASSERT_TRUE(process.wait_for_terminal("interrupt"));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("/save " + file("talk.json") + kEnter);
  ASSERT_TRUE(process.wait_for_terminal("saved as"));
  process.write("\x04");
  EXPECT_EQ(process.finish().exit_code, 0);
  const auto talk = nlohmann::json::parse(read_file(file("talk.json")));
  EXPECT_TRUE(talk.at(1).at("content").get<std::string>().starts_with("tick-tock"));
}

TEST_F(ChatEditor, AStoppedPromptLeavesASoundState) {
  write_file(file("long"), std::string(7000, 'a'));
  Process process(FUT_BINARY, options(endless_model, {"-n", "4", "-f", file("long")}));
  ASSERT_TRUE(process.wait_for_terminal("lists commands"));
  process.write("\x03");
  ASSERT_TRUE(process.wait_for_terminal("turn is forgotten"));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("hello\r");
  ASSERT_TRUE(process.wait_for_output("tick-tocktick\n"));
  process.write("\x04");
  EXPECT_EQ(process.finish().exit_code, 0);
}

TEST_F(ChatEditor, TheGaugeCountsTheConversation) {
  Process process(FUT_BINARY, options(model));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("hello\r");
  ASSERT_TRUE(process.wait_for_terminal("/1024 "));
  process.write("/clear\r");
  ASSERT_TRUE(process.wait_for_terminal("starts again"));
  process.write("\x04");
  EXPECT_EQ(process.finish().exit_code, 0);
}

// Fills a context of 160 tokens and answers the question of what is to go.
class ChatLimit : public ChatEditor,
                  public ::testing::WithParamInterface<std::pair<const char*, int>> {};

TEST_P(ChatLimit, AtItsEndTheUserIsAsked) {
  const auto [answer, messages] = GetParam();
  Process process(FUT_BINARY, options(model, {"-c", "160", "-n", "8"}));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  for (int i = 0; i < 2; ++i) {
    process.write(std::string(15, 'a') + kEnter);
    ASSERT_TRUE(process.wait_for_output("Hi\n"));
    ASSERT_TRUE(process.wait_for_terminal("> "));
  }
  process.write(std::string(70, 'b') + kEnter);
  ASSERT_TRUE(process.wait_for_terminal("the context holds 160"));
  ASSERT_TRUE(process.wait_for_terminal("drop the oldest"));
  ASSERT_TRUE(process.wait_for_terminal("d, n or s?"));
  process.write(std::string("what\r") + answer + kEnter);
  if (*answer != 's') {
    ASSERT_TRUE(process.wait_for_output("Hi\n"));
  }
  process.write("/save " + file("talk.json") + kEnter);
  ASSERT_TRUE(process.wait_for_terminal("saved as"));
  process.write("\x04");
  EXPECT_EQ(process.finish().exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(read_file(file("talk.json"))).size(),
            static_cast<std::size_t>(messages));
}

INSTANTIATE_TEST_SUITE_P(Answers, ChatLimit,
                         ::testing::Values(std::pair{"d", 4}, std::pair{"n", 2},
                                           std::pair{"s", 4}));

TEST_F(ChatEditor, ColourIsForTerminalsThatMayHaveIt) {
  for (const bool no_color : {false, true}) {
    ProcessOptions o = options(model);
    if (!no_color) o.environment.erase("NO_COLOR");
    Process process(FUT_BINARY, o);
    ASSERT_TRUE(process.wait_for_terminal("Ctrl-D leaves"));
    ASSERT_TRUE(process.wait_for_terminal(">"));
    process.write("\x04");
    EXPECT_EQ(process.finish().terminal.find("\033[1m") == std::string::npos, no_color);
  }
}

}  // namespace
}  // namespace fut::test
