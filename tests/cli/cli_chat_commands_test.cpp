// The commands of a chat, given by a script: what each changes, and what a command that fails leaves.
#include "tests/cli/chat_case.h"

namespace fut::test {
namespace {

class ChatCommands : public ChatCase {
 protected:
  ProcessResult chat(const std::string& input, std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"chat", "-m", model};
    words.insert(words.end(), more.begin(), more.end());
    ProcessOptions options = with_input(input);
    options.environment = {{"EDITOR", std::nullopt}, {"VISUAL", std::nullopt}};
    return fut(std::move(words), std::move(options));
  }
  [[nodiscard]] nlohmann::json saved(const std::string& name) const {
    return nlohmann::json::parse(read_file(file(name)));
  }
  static int prompt_tokens(const nlohmann::json& reply) {
    return reply.at("timings").at("prompt_tokens");
  }
};

TEST_F(ChatCommands, HelpListsAllOfThem) {
  const ProcessResult help = chat("/help\n");
  expect_success(help, "");
  expect_mentions(help.err, {"/help", "/system", "/set", "/status", "/stats", "/regen", "/undo",
                             "/edit", "/clear", "/save", "/load", "/tokens", "/why", "/exit"});
}

TEST_F(ChatCommands, TheNextTurnComputesOnlyWhatIsNew) {
  const auto replies =
      json_of(chat("a\nb\n/clear\na\n", {"-o", "json", "-sys", std::string(60, 's')}))
          .at("replies");
  ASSERT_EQ(replies.size(), 3U);
  const auto cached = [&](std::size_t i) {
    return replies.at(i).at("timings").at("reused_prompt_tokens").get<int>();
  };
  EXPECT_EQ(cached(0), 0);
  EXPECT_GE(cached(1), 48);
  EXPECT_LT(cached(1), prompt_tokens(replies.at(1)));
  EXPECT_EQ(cached(1) % 16, 0);
  EXPECT_GE(cached(2), 48);  // the system prompt is still there
  const ProcessResult told = chat("a\nb\n", {"-v", "-sys", std::string(60, 's')});
  expect_mentions(told.err, {" cached, ", " new)"});
}

TEST_F(ChatCommands, SaveAndLoadAreTheWholeConversation) {
  const ProcessResult first = chat("/system be brief\nhello\n/save " + file("talk.json") + "\n");
  expect_success(first, "Hi\n");
  const nlohmann::json expected = {{{"role", "system"}, {"content", "be brief"}},
                                   {{"role", "user"}, {"content", "hello"}},
                                   {{"role", "assistant"}, {"content", "Hi"}}};
  EXPECT_EQ(saved("talk.json"), expected);
  const ProcessResult second =
      chat("/load " + file("talk.json") + "\nmore\n/save " + file("longer.json") + "\n");
  expect_success(second, "Hi\n");
  EXPECT_EQ(saved("longer.json").size(), 5U);
  // A name of its own may be saved to again, another one may not.
  expect_success(chat("/load " + file("talk.json") + "\n/undo\n/save\n"), "");
  EXPECT_EQ(saved("talk.json").size(), 1U);
  const ProcessResult refused = chat("a\n/save " + file("longer.json") + "\n");
  EXPECT_EQ(refused.exit_code, 2);
  expect_mentions(refused.err, {"longer.json", "already"});
  EXPECT_EQ(saved("longer.json").size(), 5U);
}

TEST_F(ChatCommands, SavingAgainKeepsTheFilesPlaceAndMode) {
  namespace fs = std::filesystem;
  ASSERT_EQ(chat("hello\n/save " + file("talk.json") + "\n").exit_code, 0);
  fs::permissions(file("talk.json"), fs::perms(0600));
  fs::create_symlink("talk.json", file("link.json"));
  expect_success(chat("/load " + file("link.json") + "\nmore\n/save\n"), "Hi\n");
  EXPECT_TRUE(fs::is_symlink(file("link.json")));
  EXPECT_EQ(saved("talk.json").size(), 4U);
  EXPECT_EQ(fs::status(file("talk.json")).permissions(), fs::perms(0600));
}

TEST_F(ChatCommands, ABadFileChangesNothing) {
  write_file(file("bad.json"), "[{\"role\": \"user\", \"content\": \"a\"}]");
  write_file(file("worse.json"), "{");
  const ProcessResult result =
      chat("hello\n/load " + file("bad.json") + "\n/load " + file("worse.json") +
           "\n/load /nowhere\n/save " + file("after.json") + "\n");
  EXPECT_EQ(result.exit_code, 3);
  expect_mentions(result.err, {"bad.json", "message 2", "worse.json", "/nowhere"});
  EXPECT_EQ(saved("after.json").size(), 2U);
}

TEST_F(ChatCommands, AFullDiskIsAFailureThatKeepsTheTalk) {
  const ProcessResult result =
      chat("hello\n/save /nowhere/talk.json\nagain\n/save " + file("talk.json") + "\n");
  EXPECT_EQ(result.exit_code, 1);
  expect_mentions(result.err, {"/nowhere/talk.json"});
  EXPECT_EQ(result.out, "Hi\nHi\n");
  EXPECT_EQ(saved("talk.json").size(), 4U);
}

TEST_F(ChatCommands, UndoRegenAndEditChangeTheLastTurn) {
  const ProcessResult result =
      chat("one\ntwo\n/undo\nthree\n/edit four\n/regen\n/save " + file("talk.json") + "\n");
  expect_success(result, "Hi\nHi\nHi\nHi\nHi\n");
  const nlohmann::json talk = saved("talk.json");
  ASSERT_EQ(talk.size(), 4U);
  EXPECT_EQ(talk.at(0).at("content"), "one");
  EXPECT_EQ(talk.at(2).at("content"), "four");
  EXPECT_EQ(talk.at(3).at("content"), "Hi");
  EXPECT_EQ(saved("talk.json").size(), 4U);
  expect_success(chat("one\ntwo\nthree\n/undo 2\n/save " + file("undone.json") + "\n"),
                 "Hi\nHi\nHi\n");
  EXPECT_EQ(saved("undone.json").size(), 2U);
  for (const std::string& wrong :
       std::vector<std::string>{"3", "0", "-1", "x", "1 2", "99999999999999999999999"}) {
    const std::string kept = file("kept" + wrong + ".json");
    const ProcessResult refused = chat("one\ntwo\n/undo " + wrong + "\n/save " + kept + "\n");
    EXPECT_EQ(refused.exit_code, 2) << wrong;
    expect_mentions(refused.err, {"line 3", "/undo", wrong});
    EXPECT_EQ(nlohmann::json::parse(read_file(kept)).size(), 4U);
  }
  for (const std::string command : {"/undo", "/regen", "/edit x", "/stats", "/why", "/tokens"}) {
    const ProcessResult nothing = chat(command + "\n");
    EXPECT_EQ(nothing.exit_code, 2) << command;
    expect_mentions(nothing.err, {"nothing was said"});
  }
}

TEST_F(ChatCommands, AnArgumentThatMeansNothingIsRefused) {
  for (const std::string command : {"/help", "/status", "/stats", "/regen", "/clear", "/exit"}) {
    const ProcessResult result =
        chat("one\n" + command + " now\n/save " + file(command.substr(1)) + "\n");
    EXPECT_EQ(result.exit_code, 2) << command;
    EXPECT_EQ(result.out, "Hi\n") << command;
    expect_mentions(result.err, {command + " stands alone", "'now'"});
    EXPECT_EQ(saved(command.substr(1)).size(), 2U);
  }
}

TEST_F(ChatCommands, ATildeIsTheHomeFolderAndMessagesNameTheFile) {
  const auto at_home = [&](const std::string& input, const std::string& home) {
    ProcessOptions options = with_input(input);
    options.environment = {{"HOME", home}};
    return fut({"chat", "-m", model}, std::move(options));
  };
  const ProcessResult first = at_home("hello\n/save ~/talk.json\n", folder.path().string());
  expect_success(first, "Hi\n");
  expect_mentions(first.err, {"saved as " + file("talk.json")});
  EXPECT_EQ(saved("talk.json").size(), 2U);
  expect_success(at_home("/load ~/talk.json\nmore\n/save\n", folder.path().string()), "Hi\n");
  EXPECT_EQ(saved("talk.json").size(), 4U);
  const ProcessResult nowhere = at_home("hello\n/save ~/talk.json\n", "/nowhere");
  EXPECT_EQ(nowhere.exit_code, 1);
  expect_mentions(nowhere.err, {"/nowhere/talk.json: cannot be opened"});
}

TEST_F(ChatCommands, ATurnThatFailsInThePlaceOfAnotherLeavesIt) {
  // Said as long as nothing keeps "Hi" back; what follows "boom" is beyond float32.
  Script broken;
  broken.say("\n\n", {"Hi", "<|eot_id|>"});
  broken.model.link("\n\n", "boom", 0.9F);
  broken.model.link("boom", "x", 3e38F);
  for (const std::string command : {"/regen", "/edit three"}) {
    const std::string talk = file(command.substr(1, 4) + ".json");
    const ProcessResult result =
        fut({"chat", "-m", broken.write()},
            with_input("one\ntwo\n/set repeat-penalty 5\n" + command + "\n/save " + talk + "\n"));
    EXPECT_EQ(result.exit_code, 1) << result.err;
    expect_mentions(result.err, {"not finite"});
    const auto messages = nlohmann::json::parse(read_file(talk));
    ASSERT_EQ(messages.size(), 4U) << command;
    EXPECT_EQ(messages.at(2).at("content"), "two");
    EXPECT_EQ(messages.at(3).at("content"), "Hi");
  }
}

TEST_F(ChatCommands, EditOpensTheUsersEditor) {
  const std::string editor = file("editor");
  write_file(editor, "#!/bin/sh\nsed -i 's/one/two\\nlines/' \"$1\"\n");
  std::filesystem::permissions(editor, std::filesystem::perms::owner_all);
  ProcessOptions options = with_input("one\n/edit\n/save " + file("talk.json") + "\n");
  options.environment = {{"VISUAL", editor}};
  expect_success(fut({"chat", "-m", model}, options), "Hi\nHi\n");
  EXPECT_EQ(saved("talk.json").at(0).at("content"), "two\nlines");
  const ProcessResult none = chat("one\n/edit\n");
  EXPECT_EQ(none.exit_code, 2);
  expect_mentions(none.err, {"EDITOR", "/edit TEXT"});
  options = with_input("one\n/edit\n/save " + file("kept.json") + "\n");
  options.environment = {{"VISUAL", "false"}};
  EXPECT_EQ(fut({"chat", "-m", model}, options).exit_code, 1);
  EXPECT_EQ(saved("kept.json").at(0).at("content"), "one");
}

TEST_F(ChatCommands, SettingsAreThoseOfTheCommandLine) {
  const ProcessResult result = chat(
      "/set temp 0.5\n/set top_p 0.9\n/set --seed 7\n/set stop END\n/set n-predict 12\n/status\n");
  expect_success(result, "");
  expect_mentions(result.err,
                  {"temperature", "0.5 (flag)", "0.9 (flag)", "7 (flag)", "'END'", "12"});
  for (const std::string bad :
       {"temp -1", "temp abc", "top-p 2", "tmp 1", "n-predict 0", "temp", "ignore-eos maybe"}) {
    const ProcessResult failed = chat("/set " + bad + "\n");
    EXPECT_EQ(failed.exit_code, 2) << bad;
  }
  expect_mentions(chat("/set tempp 1\n").err, {"did you mean temp"});
  expect_mentions(chat("/set foo\n").err, {"no setting 'foo'", "temp", "history"});
  // A seed that was drawn stays, and stays nobody's choice.
  expect_mentions(chat("/set temp 0.5\n").err, {"(random)"});
  // One that was given goes where a random one is asked for.
  const ProcessResult drawn = chat("/set seed 7\n/set seed -1\n");
  expect_mentions(drawn.err, {" 7 (flag)", "(random)"});
  EXPECT_EQ(drawn.err.find(" 7 (random)"), std::string::npos) << drawn.err;
  // What the conversation was begun with stays.
  for (const char* name : {"date 2026-01-01", "chat-template llama3", "parse-special on"}) {
    const ProcessResult begun = chat(std::string("/set ") + name + "\n");
    EXPECT_EQ(begun.exit_code, 2) << name;
    expect_mentions(begun.err, {"no setting"});
  }
  // One token a reply.
  const auto replies = json_of(chat("a\n/set n-predict 1\na\n", {"-o", "json"})).at("replies");
  EXPECT_EQ(replies.at(0).at("finish_reason"), "eos");
  EXPECT_EQ(replies.at(1).at("finish_reason"), "length");
}

TEST_F(ChatCommands, TheSystemPromptCanChangeOnTheWay) {
  const auto replies =
      json_of(chat("a\n/clear\n/system be kind\na\n/system off\n/clear\na\n", {"-o", "json"}))
          .at("replies");
  EXPECT_GT(prompt_tokens(replies.at(1)), prompt_tokens(replies.at(0)));
  EXPECT_EQ(prompt_tokens(replies.at(2)), prompt_tokens(replies.at(0)));
  const ProcessResult huge = chat("/system " + std::string(90, 's') + "\na\n", {"-c", "64"});
  EXPECT_EQ(huge.exit_code, 4);
  EXPECT_EQ(huge.out, "Hi\n");  // without it
}

TEST_F(ChatCommands, AStoredSystemPromptMovesNoCursor) {
  write_file(file("talk.json"), R"([{"role": "system", "content": "one\n\u001b[2Jtwo"}])");
  const ProcessResult result = chat("/load " + file("talk.json") + "\n/system\n");
  expect_success(result, "");
  expect_mentions(result.err, {"one\n\\x1B[2Jtwo"});
  EXPECT_EQ(result.err.find('\033'), std::string::npos);
}

TEST_F(ChatCommands, StatusAndStatsTellWhatActsAndWhatItCost) {
  const ProcessResult result = chat("hello\nagain\n/status\n/stats\n", {"-sys", "be brief"});
  expect_success(result, "Hi\nHi\n");
  expect_mentions(result.err, {model, "f32", "demo", "of 1024", "2 turns", "be brief", "not stored",
                               "cached", "first token after", "tokens/s", "ended by eos", "all 2"});
}

TEST_F(ChatCommands, TokensAreShownAndWhatStoodToChoice) {
  const ProcessResult result = chat("/tokens Hi there\nhello\n/tokens\n/why\n/why 2\nhello\n");
  expect_success(result, "Hi\nHi\n");
  expect_mentions(result.err, {"'Hi'", "<|begin_of_text|>", "* ", "'<|eot_id|>' was said",
                               "'Hi' was said", " %"});
  EXPECT_EQ(chat("hello\n/why 9\n").exit_code, 2);
  EXPECT_EQ(chat("hello\n/why x\n").exit_code, 2);
  EXPECT_EQ(chat("hello\n/why 99999999999999999999999\n").exit_code, 2);
  // Nothing is explained that is gone.
  const std::string talk = file("talk.json");
  ASSERT_EQ(chat("hello\n/save " + talk + "\n").exit_code, 0);
  for (const std::string& gone : {std::string("/clear"), std::string("/undo"), "/load " + talk}) {
    for (const char* command : {"/why", "/tokens"}) {
      const ProcessResult after = chat("hello\n" + gone + "\n" + command + "\n");
      EXPECT_EQ(after.exit_code, 2) << gone << command;
      expect_mentions(after.err, {"gone with its turn"});
    }
    expect_success(chat("hello\n" + gone + "\nhello\n/why\n/stats\n"), "Hi\nHi\n");
  }
}

TEST_F(ChatCommands, ABlockIsOneTurnAndNeverACommand) {
  const ProcessResult result = chat(
      "\"\"\"\nfirst\n/exit\n  last\n\"\"\"\n\"\"\"one\"\"\"\n/save " + file("talk.json") + "\n");
  expect_success(result, "Hi\nHi\n");
  EXPECT_EQ(saved("talk.json").at(0).at("content"), "first\n/exit\n  last");
  EXPECT_EQ(saved("talk.json").at(2).at("content"), "one");
  // One that is never closed counts as far as it goes.
  expect_success(chat("\"\"\"open\nend"), "Hi\n");
}

TEST_F(ChatCommands, ASingleTurnForgetsNoFailedCommand) {
  const ProcessResult result = chat("/set tempp 1\nhello\nmore\n", {"--single-turn"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "Hi\n");
  const ProcessResult slip = chat("/claer\n", {"--single-turn"});
  EXPECT_EQ(slip.exit_code, 2);
  EXPECT_EQ(slip.out, "");
  const std::size_t at = slip.err.find("no command");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(slip.err.find("no command", at + 1), std::string::npos) << slip.err;
}

TEST_F(ChatCommands, AHistoryIsOfAChat) {
  expect_failure(fut({"run", "-m", model, "-p", "x", "--history-file", file("h")}), 2,
                 {"--history-file", "chat"});
  ProcessOptions everywhere;
  everywhere.environment = {{"FUT_HISTORY_FILE", file("h")}};
  expect_success(fut({"run", "-m", model, "-p", "x"}, everywhere), "Hi\n");
}

TEST_F(ChatCommands, NothingIsDrawnForAPipe) {
  const ProcessResult result = chat("hello\n/status\n/stats\n");
  EXPECT_EQ(result.out.find('\033'), std::string::npos);
  EXPECT_EQ(result.err.find('\033'), std::string::npos);
  EXPECT_EQ(result.err.find('\r'), std::string::npos);
}

}  // namespace
}  // namespace fut::test
