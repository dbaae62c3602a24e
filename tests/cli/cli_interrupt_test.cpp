// Signals and end of input in `fut run`.
#include <csignal>

#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

class Interrupt : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    script = std::make_unique<Script>();
    script->say("x", {"tick", "x"}).say("\n\n", {"Hi", "<|eot_id|>"});
    script->model.files.max_position_embeddings = 8192;  // long enough to be interrupted
    model = script->write();
  }
  static void TearDownTestSuite() { script.reset(); }
  static ProcessOptions endless(std::vector<std::string> more = {}) {
    ProcessOptions options;
    options.arguments = {"run", "-m", model, "--raw", "-p", "x", "-n", "-1"};
    options.arguments.insert(options.arguments.end(), more.begin(), more.end());
    return options;
  }
  static std::unique_ptr<Script> script;
  static std::string model;
};
std::unique_ptr<Script> Interrupt::script;
std::string Interrupt::model;

TEST_F(Interrupt, StopsAReplyAtTheNextStepAndKeepsItsText) {
  Process process(FUT_BINARY, on_cpu_in_f32(endless()));
  ASSERT_TRUE(process.wait_for_output("tick"));
  process.send_signal(SIGINT);
  const ProcessResult result = process.finish();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_TRUE(result.out.starts_with("tick"));
}

TEST_F(Interrupt, TerminationLeavesWith143) {
  Process process(FUT_BINARY, on_cpu_in_f32(endless()));
  ASSERT_TRUE(process.wait_for_output("tick"));
  process.send_signal(SIGTERM);
  EXPECT_EQ(process.finish().exit_code, 143);
}

TEST_F(Interrupt, StillGivesOneDocumentMarkedAsInterrupted) {
  // Lines tell when the reply is under way; the last one is the document.
  Process process(FUT_BINARY, on_cpu_in_f32(endless({"-o", "jsonl"})));
  ASSERT_TRUE(process.wait_for_output("tick"));
  process.send_signal(SIGINT);
  const ProcessResult result = process.finish();
  EXPECT_EQ(result.exit_code, 130);
  const auto document = nlohmann::json::parse(lines_of(result.out).back());
  EXPECT_EQ(document.at("finish_reason"), "interrupt");
  EXPECT_TRUE(document.at("text").get<std::string>().starts_with("tick"));
}

TEST_F(Interrupt, EndsAWaitForInput) {
  ProcessOptions options;
  options.arguments = {"run", "-m", model, "-p", "-", "-o", "json", "-v"};
  options.input_kind = ProcessOptions::Input::Open;
  Process process(FUT_BINARY, on_cpu_in_f32(options));
  process.write("something");
  ASSERT_TRUE(process.wait_for_error("reading standard input"));
  process.send_signal(SIGINT);
  const ProcessResult result = process.finish();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(json_of(result).at("error").at("code"), 130);
}

TEST_F(Interrupt, EndOfInputWithoutAPromptIsWrongUsage) {
  expect_failure(fut({"run", "-m", model}), 2, {"-p"});
  expect_failure(fut({"run", "-m", model, "--raw"}), 2, {"-p"});
  ProcessOptions closed;
  closed.input_kind = ProcessOptions::Input::Closed;
  expect_failure(fut({"run", "-m", model}, closed), 2, {"-p"});
}

TEST_F(Interrupt, StandardInputIsThePromptWhereNoneIsGiven) {
  expect_success(fut({"run", "-m", model, "--raw", "-n", "1"}, with_input("x")), "tick");
  expect_success(fut({"run", "-m", model, "--raw", "-n", "1", "-p", "-"}, with_input("x")), "tick");
  expect_success(fut({"run", "-m", model, "--raw", "-n", "1", "-f", "-"}, with_input("x")), "tick");
  expect_success(fut({"run", "-m", model}, with_input("hello\nthere\n")), "Hi\n");
}

TEST_F(Interrupt, StandardInputIsLeftAloneWhereAPromptIsGiven) {
  ProcessOptions options = with_input("rest");
  options.arguments = {"-c",
                       std::string(FUT_BINARY) + " run -m " + model + " --raw -n 1 -p x; cat"};
  EXPECT_EQ(run_process("/bin/sh", on_cpu_in_f32(options)).out, "tickrest");
}

TEST_F(Interrupt, OneFinalNewlineIsDroppedInTheChatFormAndKeptInRawText) {
  const auto ids = [&](const std::vector<std::string>& more, const std::string& input) {
    std::vector<std::string> words = {"run", "-m", model, "-n", "1", "-o", "json"};
    words.insert(words.end(), more.begin(), more.end());
    return json_of(fut(words, with_input(input))).at("prompt_ids");
  };
  EXPECT_EQ(ids({}, "a\n"), ids({"-p", "a"}, ""));
  EXPECT_EQ(ids({}, "a\n\n"), ids({"-p", "a\\n"}, ""));
  EXPECT_EQ(ids({"--raw"}, "a\n"), ids({"--raw", "-p", "a\\n"}, ""));
}

}  // namespace
}  // namespace fut::test
