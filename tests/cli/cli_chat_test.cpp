// `fut chat`: lines in, replies out, in a script and on a terminal; how it ends.
#include <csignal>

#include "tests/cli/chat_case.h"

namespace fut::test {
namespace {

class Chat : public ChatCase {
 protected:
  static ProcessResult chat(std::string input, std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"chat", "-m", model};
    words.insert(words.end(), more.begin(), more.end());
    return fut(std::move(words), with_input(std::move(input)));
  }
  static ProcessOptions on_terminal(std::vector<std::string> arguments) {
    ProcessOptions options;
    options.arguments = std::move(arguments);
    options.input_kind = ProcessOptions::Input::Terminal;
    options.error_to_terminal = true;
    options.environment = {{"TERM", "dumb"}};
    return options;
  }
};

TEST_F(Chat, AnswersEveryLineOnce) {
  expect_success(chat("hello\n"), "Hi\n");
  expect_success(chat("one\ntwo\nthree\n"), "Hi\nHi\nHi\n");
}

TEST_F(Chat, EndOfInputLeavesAtOnce) {
  const ProcessResult nothing = chat("");
  expect_success(nothing, "");
  EXPECT_LT(nothing.seconds, 30);
  ProcessOptions closed;
  closed.input_kind = ProcessOptions::Input::Closed;
  expect_success(fut({"chat", "-m", model}, closed), "");
}

TEST_F(Chat, ALastLineWithoutNewlineCounts) {
  expect_success(chat("hi"), "Hi\n");
}

TEST_F(Chat, NothingIsReadAfterExit) {
  expect_success(chat("hi\n\n/exit\nmore\n"), "Hi\n");
  // What stands after /exit is still there for the next reader.
  ProcessOptions options = with_input("hi\n/exit\nmore\n");
  options.arguments = {"-c", std::string(FUT_BINARY) + " chat -m " + model + "; cat"};
  EXPECT_EQ(run_process("/bin/sh", on_cpu_in_f32(options)).out, "Hi\nmore\n");
}

TEST_F(Chat, BlankLinesAreNoTurns) {
  expect_success(chat("\n   \n\t\r\n"), "");
}

TEST_F(Chat, LongLinesAreTakenWhole) {
  const std::string line(1000, 'a');
  const auto ids = chat(line + "\n", {"-o", "json"});
  const auto document = json_of(ids);
  const int prompt_tokens = document.at("replies").at(0).at("timings").at("prompt_tokens");
  EXPECT_GT(prompt_tokens, 1000);
  EXPECT_LT(prompt_tokens, 1024);
  // 200 KB cannot fit, and the number of its tokens proves that none was lost.
  const ProcessResult huge = chat(std::string(200'000, 'a') + "\nhi\n");
  EXPECT_EQ(huge.out, "Hi\n");
  EXPECT_EQ(huge.exit_code, 4);  // a turn went without a reply
  expect_mentions(huge.err, {"turn 1", "20002", "1024"});
}

TEST_F(Chat, LinesMayHoldAnyBytes) {
  expect_success(chat(std::string("a\0b\n\xFF\xFE\n", 7)), "Hi\nHi\n");
  const auto document = json_of(chat(std::string("a\0b\n", 4), {"-o", "json"}));
  const auto plain = json_of(chat("acb\n", {"-o", "json"}));
  const auto tokens = [](const nlohmann::json& d) {
    return d.at("replies").at(0).at("timings").at("prompt_tokens");
  };
  EXPECT_EQ(tokens(document), tokens(plain));
}

TEST_F(Chat, CommandsAreNoTurns) {
  const ProcessResult help = chat("/help\nhi\n");
  expect_success(help, "Hi\n");
  expect_mentions(help.err, {"/clear", "/exit"});
  const ProcessResult path = chat("/etc/hosts, what is it?\n");  // a script's line is said
  expect_success(path, "Hi\n");
  EXPECT_EQ(path.err, "");
  const ProcessResult slip = chat("hi\n/claer\nhi\n");
  EXPECT_EQ(slip.exit_code, 2);
  EXPECT_EQ(slip.out, "Hi\nHi\n");
  expect_mentions(slip.err, {"line 2", "no command /claer", "mean /clear?", "/help", "a blank"});
  EXPECT_EQ(chat("/sav\tx.json\n").exit_code, 2);
  expect_success(chat(" /exit\nhi\n"), "Hi\nHi\n");  // a blank in front makes it something said
}

TEST_F(Chat, AnOldOutputFileStaysUntilAReplyIsWritten) {
  for (const std::vector<std::string>& format :
       {std::vector<std::string>{}, std::vector<std::string>{"-o", "jsonl"}}) {
    write_file(file("old"), "precious\n");
    std::vector<std::string> words = {"--output-file", file("old"), "-c", "64"};
    words.insert(words.end(), format.begin(), format.end());
    expect_success(chat("", words), "");
    expect_success(chat("/help\n", words), "");
    EXPECT_EQ(read_file(file("old")), "precious\n");
    expect_success(chat("hello\n", words), "");
    EXPECT_EQ(read_file(file("old")).find("precious"), std::string::npos);
    EXPECT_NE(read_file(file("old")).find("Hi"), std::string::npos);
  }
  // A turn that found no room is a line, and no reply.
  write_file(file("old"), "precious\n");
  EXPECT_EQ(chat(std::string(70, 'b') + "\n", {"--output-file", file("old"), "-c", "64"}).exit_code,
            4);
  EXPECT_EQ(read_file(file("old")), "precious\n");
}

TEST_F(Chat, EachTurnComputesItsNewTokensAlone) {
  const auto replies = json_of(chat("one\ntwo\nthree\n", {"-o", "json"})).at("replies");
  ASSERT_EQ(replies.size(), 3U);
  int in_cache = 0;
  for (const auto& reply : replies) {
    const auto& timings = reply.at("timings");
    EXPECT_EQ(timings.at("reused_prompt_tokens"), in_cache / 16 * 16);
    // All but the last token of the reply, which nothing followed.
    in_cache = timings.at("prompt_tokens").get<int>() + timings.at("reply_tokens").get<int>() - 1;
  }
  EXPECT_GT(in_cache, 16);
}

TEST_F(Chat, HistoryGrowsAndClearForgetsIt) {
  const auto replies = json_of(chat("a\nb\n/clear\nc\n", {"-o", "json"})).at("replies");
  ASSERT_EQ(replies.size(), 3U);
  const auto tokens = [&](std::size_t i) {
    return replies.at(i).at("timings").at("prompt_tokens").get<int>();
  };
  EXPECT_GT(tokens(1), tokens(0) + 10);
  EXPECT_EQ(tokens(2), tokens(0));
}

TEST_F(Chat, OneTurnOnlyOnRequest) {
  expect_success(chat("one\ntwo\n", {"-st"}), "Hi\n");
  expect_success(chat("one\ntwo\n", {"--single-turn", "-p", "zero"}), "Hi\n");
  expect_success(chat("one\n", {"-p", "zero"}), "Hi\nHi\n");
}

TEST_F(Chat, ReportsAreALineEachOrOneDocument) {
  const std::vector<std::string> lines = lines_of(chat("a\nb\n", {"-o", "jsonl"}).out);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(nlohmann::json::parse(lines[1]).at("turn"), 2);
  EXPECT_EQ(nlohmann::json::parse(lines[1]).at("text"), "Hi");
  EXPECT_EQ(json_of(chat("a\nb\n", {"-o", "json"})).at("replies").size(), 2U);
}

TEST_F(Chat, ATurnThatDoesNotFitIsNamedAndForgotten) {
  // 64 tokens: two short turns fit, the long third one does not, the short fourth one does again.
  const ProcessResult result =
      chat("a\n" + std::string(70, 'b') + "\nc\n", {"-c", "64", "-o", "json"});
  EXPECT_EQ(result.exit_code, 4) << result.err;
  expect_mentions(result.err, {"turn 2", "64"});
  const auto replies = json_of(result).at("replies");
  ASSERT_EQ(replies.size(), 3U);
  EXPECT_EQ(replies.at(0).at("text"), "Hi");
  EXPECT_EQ(replies.at(1).at("error").at("code"), 4);
  EXPECT_EQ(replies.at(2).at("text"), "Hi");
  // The first turn is still part of the conversation.
  EXPECT_GT(replies.at(2).at("timings").at("prompt_tokens"),
            replies.at(0).at("timings").at("prompt_tokens").get<int>() + 2);
  expect_failure(chat(std::string(70, 'b') + "\n", {"-c", "64", "-st"}), 4, {"turn 1", "64"});
}

TEST_F(Chat, AHistoryThatOutgrowsTheContextIsTold) {
  std::string input;
  for (int i = 0; i < 8; ++i) input += "a\n";
  const ProcessResult result = chat(input, {"-c", "64"});
  EXPECT_EQ(result.exit_code, 4);
  expect_mentions(result.err, {"does not fit", "64", "/clear"});
  EXPECT_GE(lines_of(result.out).size(), 2U);
}

TEST_F(Chat, ASystemPromptThatCannotFitIsRefusedBeforeAnyPrompt) {
  const ProcessResult result = chat("a\n", {"-c", "64", "-sys", std::string(80, 's')});
  expect_failure(result, 4, {"64"});
}

TEST_F(Chat, LoadingFailsBeforeAnyPromptIsShown) {
  Process process(FUT_BINARY, on_cpu_in_f32(on_terminal({"chat", "-m", "/nowhere"})));
  const ProcessResult result = process.finish();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.terminal.find("> "), std::string::npos) << result.terminal;
}

// ---- on a terminal -----------------------------------------------------------------------------

TEST_F(Chat, PromptsOnATerminalAndControlDLeaves) {
  Process process(FUT_BINARY, on_cpu_in_f32(on_terminal({"chat", "-m", model})));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("hello\n");
  ASSERT_TRUE(process.wait_for_output("Hi\n"));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("\x04");
  const ProcessResult result = process.finish();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "Hi\n");
}

TEST_F(Chat, ControlDDoesNotLoseTypedText) {
  Process process(FUT_BINARY, on_cpu_in_f32(on_terminal({"chat", "-m", model})));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("hello");
  process.write("\x04\x04");
  ASSERT_TRUE(process.wait_for_output("Hi\n"));
  EXPECT_EQ(process.finish().exit_code, 0);
}

TEST_F(Chat, AMistypedCommandOnATerminalIsNoTurn) {
  Process process(FUT_BINARY, on_cpu_in_f32(on_terminal({"chat", "-m", model})));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("/claer\n");
  EXPECT_TRUE(process.wait_for_terminal("no command /claer, did you mean /clear?"));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("\x04");
  EXPECT_EQ(process.finish().out, "");
}

TEST_F(Chat, RunWithoutAPromptOnATerminalIsAChat) {
  ProcessOptions options = on_terminal({"run", "-m", model});
  options.environment = {{"TERM", std::nullopt}};
  Process process(FUT_BINARY, on_cpu_in_f32(options));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("hello\n/exit\n");
  const ProcessResult result = process.finish();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "Hi\n");
}

TEST_F(Chat, ControlCStopsAReplyAndKeepsWhatWasSaid) {
  ProcessOptions options =
      on_terminal({"chat", "-m", endless_model, "-n", "-1", "--verbose-prompt"});
  Process process(FUT_BINARY, on_cpu_in_f32(options));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("hello\n");
  ASSERT_TRUE(process.wait_for_output("tick-tocktick"));
  process.write("\x03");
  ASSERT_TRUE(process.wait_for_terminal("interrupt"));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("again\n");
  // The second prompt holds the words of the first, stopped reply.
  ASSERT_TRUE(process.wait_for_terminal("'k'"));
  process.write("\x03");
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("/exit\n");
  const ProcessResult result = process.finish();
  EXPECT_EQ(result.exit_code, 0) << result.terminal;
}

TEST_F(Chat, ControlCAtThePromptTellsFirstAndLeavesThen) {
  Process process(FUT_BINARY, on_cpu_in_f32(on_terminal({"chat", "-m", model})));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("\x03");
  ASSERT_TRUE(process.wait_for_terminal("to leave"));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("\x03");
  EXPECT_EQ(process.finish().exit_code, 130);
}

TEST_F(Chat, SomethingSaidBetweenTwoControlCStartsTheCountAgain) {
  Process process(FUT_BINARY, on_cpu_in_f32(on_terminal({"chat", "-m", model})));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("\x03");
  ASSERT_TRUE(process.wait_for_terminal("to leave"));
  process.write("hello\n");
  ASSERT_TRUE(process.wait_for_output("Hi\n"));
  process.write("\x03");
  ASSERT_TRUE(process.wait_for_terminal("to leave"));
  process.write("\x04");
  EXPECT_EQ(process.finish().exit_code, 0);
}

TEST_F(Chat, TerminationLeavesWith143) {
  Process process(FUT_BINARY, on_cpu_in_f32(on_terminal({"chat", "-m", model})));
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.send_signal(SIGTERM);
  EXPECT_EQ(process.finish().exit_code, 143);
}

TEST_F(Chat, InAScriptAnInterruptEndsTheSession) {
  ProcessOptions options;
  options.arguments = {"chat", "-m", endless_model, "-n", "-1"};
  options.input_kind = ProcessOptions::Input::Open;
  Process process(FUT_BINARY, on_cpu_in_f32(options));
  process.write("hello\n");
  ASSERT_TRUE(process.wait_for_output("tick-tocktick"));
  process.send_signal(SIGINT);
  const ProcessResult result = process.finish();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_TRUE(result.out.starts_with("tick-tocktick"));
}

}  // namespace
}  // namespace fut::test
