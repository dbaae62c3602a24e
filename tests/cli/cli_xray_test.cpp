// What a user can see of a prompt and of how sure the model was: --verbose-prompt and --logprobs.
#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

class Xray : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    script = std::make_unique<Script>();
    script->say("\n\n", {"Hi", "<|eot_id|>"});
    model = script->write();
    // After "a" comes one of two, which are as likely.
    unsure = std::make_unique<Script>();
    unsure->model.link("a", "b", 1.0F);
    unsure->model.link("a", "c", 1.0F);
    unsure->model.link("b", "<|eot_id|>", 1.0F);
    unsure_model = unsure->write();
  }
  static void TearDownTestSuite() {
    script.reset();
    unsure.reset();
  }
  static ProcessResult on_terminal(std::vector<std::string> arguments, bool no_color) {
    ProcessOptions options;
    options.arguments = std::move(arguments);
    options.output_kind = ProcessOptions::Output::Terminal;
    options.error_to_terminal = true;
    options.environment = {{"TERM", "xterm"}};
    if (no_color) options.environment["NO_COLOR"] = "1";
    return run_process(FUT_BINARY, on_cpu_in_f32(std::move(options)));
  }
  static std::unique_ptr<Script> script, unsure;
  static std::string model, unsure_model;
};
std::unique_ptr<Script> Xray::script, Xray::unsure;
std::string Xray::model, Xray::unsure_model;

TEST_F(Xray, ShowsTheTextAsTheModelSeesItAndEveryToken) {
  const ProcessResult result = fut({"run", "-m", model, "-p", "hello", "--verbose-prompt"});
  expect_success(result, "Hi\n");
  expect_mentions(result.err,
                  {"prompt: ", " tokens", "| <|begin_of_text|>", "'h'", "'<|begin_of_text|>'"});
  EXPECT_EQ(result.err.find("<-"), std::string::npos) << result.err;
}

TEST_F(Xray, SpellsOutWhatATerminalWouldObey) {
  const ProcessResult result =
      fut({"run", "-m", model, "--raw", "-n", "1", "--verbose-prompt", "-p",
           "a\x7F\xC2\x9B"
           "2J\xC3\xA9"});
  expect_mentions(result.err, {"a\\x7F\\xC2\\x9B2J\xC3\xA9"});
  EXPECT_EQ(result.err.find("\xC2\x9B"), std::string::npos);
  EXPECT_EQ(result.err.find('\x7F'), std::string::npos);
}

TEST_F(Xray, MarksWhatIsSuspicious) {
  const ProcessResult blank =
      fut({"run", "-m", model, "--raw", "-n", "1", "-p", "hello ", "--verbose-prompt"});
  expect_mentions(blank.err, {"look at 1 mark", "a blank at the end"});
  const ProcessResult twice = fut(
      {"run", "-m", model, "--raw", "-n", "1", "--verbose-prompt", "-p", "x<|begin_of_text|>y"});
  expect_mentions(twice.err, {"a second BOS"});
}

TEST_F(Xray, RepliesAreColouredByProbabilityOnATerminal) {
  const ProcessResult result = on_terminal(
      {"run", "-m", unsure_model, "--raw", "-p", "a", "-n", "2", "--logprobs", "1"}, false);
  EXPECT_EQ(result.exit_code, 0) << result.terminal;
  // One of two that are as likely.
  EXPECT_NE(result.terminal.find("b\033[0m"), std::string::npos) << result.terminal;
  expect_mentions(result.terminal, {"how likely a token was"});
}

TEST_F(Xray, ColoursAreNotForPipesNorForThoseWhoWantNone) {
  expect_failure(fut({"run", "-m", model, "-p", "x", "--logprobs", "1"}), 2,
                 {"--logprobs", "-o json"});
  const ProcessResult result =
      on_terminal({"run", "-m", model, "-p", "x", "--logprobs", "1"}, true);
  EXPECT_EQ(result.exit_code, 2);
}

TEST_F(Xray, NoModelDrivesTheTerminal) {
  Script script_of_controls;
  script_of_controls.say("\n\n", {"x\033[2Jy", "<|eot_id|>"});
  const std::string sly = script_of_controls.write();
  const ProcessResult seen = on_terminal({"run", "-m", sly, "-p", "a"}, true);
  EXPECT_EQ(seen.terminal.find('\033'), std::string::npos);
  expect_mentions(seen.terminal, {"x\\x1B[2Jy"});
  // A pipe gets the bytes.
  expect_success(fut({"run", "-m", sly, "-p", "a"}), "x\033[2Jy\n");
}

}  // namespace
}  // namespace fut::test
