// Which tokens end a reply, whichever file names them.
#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

// "Hi", the end of the turn, then what must never be shown.
Script talkative() {
  Script script;
  script.say("x", {"Hi", "<|eot_id|>", "BAD", "WORSE", "BAD"}).say("\n\n", {"Hi"});
  return script;
}

void expect_stops(const Script& script) {
  const std::string model = script.write();
  const ProcessResult raw = fut({"run", "-m", model, "--raw", "-p", "x", "-n", "8", "-o", "json"});
  EXPECT_EQ(raw.exit_code, 0) << raw.err;
  const auto document = json_of(raw);
  EXPECT_EQ(document.at("text"), "Hi");
  EXPECT_EQ(document.at("finish_reason"), "eos");
  expect_success(fut({"run", "-m", model, "-p", "x", "-n", "8"}), "Hi\n");
}

class EndTokens : public ::testing::Test {
 protected:
  EndTokens() {
    eot = script.model.token("<|eot_id|>");
    end = script.model.token("<|end_of_text|>");
    // No file names the end of the turn; each test lets one do so.
    script.model.files.config_patch = {{"eos_token_id", end}};
    script.model.files.generation_patch = {{"eos_token_id", end}};
    script.model.files.tokenizer_config_patch = {{"eos_token", "<|end_of_text|>"}};
  }
  Script script = talkative();
  int eot = 0;
  int end = 0;
};

TEST_F(EndTokens, AnEndTokenInARowThatTheConfigForgotIsOne) {
  script.model.files.config_patch = {{"eos_token_id", eot}, {"vocab_size", 300}};
  expect_stops(script);
}

TEST_F(EndTokens, AnEndTokenOutsideTheVocabularyIsRefused) {
  script.model.files.generation_patch = {{"eos_token_id", 100000}};
  expect_failure(fut({"run", "-m", script.write(), "--raw", "-p", "x"}), 3, {"100000", "512"});
}

TEST_F(EndTokens, AListInTheGenerationConfig) {
  script.model.files.generation_patch = {{"eos_token_id", {end, eot, eot + 1}}};
  expect_stops(script);
}

TEST_F(EndTokens, AListInTheModelConfigAlone) {
  script.model.files.config_patch = {{"eos_token_id", {end, eot}}};
  script.model.files.generation_config = false;
  expect_stops(script);
}

TEST_F(EndTokens, OneNumberInEachFile) {
  script.model.files.config_patch = {{"eos_token_id", end}};
  script.model.files.generation_patch = {{"eos_token_id", eot}};
  expect_stops(script);
}

TEST_F(EndTokens, OnlyTheTokenizerConfigNamesIt) {
  script.model.files.config_patch = {{"eos_token_id", nullptr}};
  script.model.files.generation_patch = {{"eos_token_id", nlohmann::json::array()}};
  script.model.files.tokenizer_config_patch = {{"eos_token", "<|eot_id|>"}};
  expect_stops(script);
}

TEST_F(EndTokens, NoFileNamesItAndTheTemplateEndsTheTurn) {
  const std::string model = script.write();
  expect_success(fut({"run", "-m", model, "-p", "x", "-n", "8"}), "Hi\n");
  expect_success(fut({"chat", "-m", model, "-n", "8"}, with_input("x\n")), "Hi\n");
  // Raw text has no turns.
  expect_success(fut({"run", "-m", model, "--raw", "-p", "x", "-n", "4"}), "HiBADWORSE");
}

TEST_F(EndTokens, ATextAsIdIsRefused) {
  script.model.files.config_patch = {{"eos_token_id", "<|eot_id|>"}};
  expect_failure(fut({"run", "-m", script.write(), "-p", "x"}), 3, {"config.json", "eos_token_id"});
}

TEST_F(EndTokens, AnIdOutsideTheVocabularyIsRefused) {
  script.model.files.generation_patch = {{"eos_token_id", 512}};
  expect_failure(fut({"run", "-m", script.write(), "-p", "x"}), 3,
                 {"generation_config.json", "512"});
}

TEST_F(EndTokens, IgnoringThemGoesOnAndDoesNotShowThem) {
  script.model.files.config_patch = {{"eos_token_id", eot}};
  const std::string model = script.write();
  expect_success(fut({"run", "-m", model, "--raw", "-p", "x", "-n", "4", "--ignore-eos"}),
                 "HiBADWORSE");
  expect_success(fut({"run", "-m", model, "-p", "x", "-n", "4", "--ignore-eos"}), "HiBADWORSE\n");
}

TEST_F(EndTokens, ControlTokensShowOnRequest) {
  script.model.files.config_patch = {{"eos_token_id", eot}};
  expect_success(fut({"run", "-m", script.write(), "--raw", "-p", "x", "-n", "3", "--ignore-eos",
                      "--special"}),
                 "Hi<|eot_id|>BAD");
}

}  // namespace
}  // namespace fut::test
