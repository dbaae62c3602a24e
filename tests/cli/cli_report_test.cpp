// The machine-readable reports of `fut run`: one document, on failure too.
#include <limits>

#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

class Report : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    script = std::make_unique<Script>();
    script->say("x", {"Hi", "<|eot_id|>"}).say("y", {"tick", "y"});
    model = script->write();
  }
  static void TearDownTestSuite() { script.reset(); }
  static ProcessResult run(const std::string& prompt, std::vector<std::string> more) {
    std::vector<std::string> words = {"run", "-m", model, "--raw", "-p", prompt};
    words.insert(words.end(), more.begin(), more.end());
    return fut(std::move(words));
  }
  static std::unique_ptr<Script> script;
  static std::string model;
};
std::unique_ptr<Script> Report::script;
std::string Report::model;

TEST_F(Report, TellsWhatWentInAndWhatCameOut) {
  const ProcessResult result = run("x", {"-o", "json", "--seed", "5"});
  EXPECT_EQ(result.exit_code, 0);
  const auto document = json_of(result);
  const std::int32_t bos = script->model.token("<|begin_of_text|>");
  const std::int32_t hi = script->model.token("Hi");
  const std::int32_t end = script->model.token("<|eot_id|>");
  EXPECT_EQ(document.at("prompt_ids"), (std::vector<std::int32_t>{bos, 'x'}));
  EXPECT_EQ(document.at("ids"), (std::vector<std::int32_t>{hi, end}));  // the end token included
  EXPECT_EQ(document.at("text"), "Hi");                                 // without it
  EXPECT_EQ(document.at("finish_reason"), "eos");
  EXPECT_EQ(document.at("stop"), nullptr);
  EXPECT_EQ(document.at("seed"), 5);
  EXPECT_EQ(document.at("model"), model);
  EXPECT_EQ(document.at("timings").at("prompt_tokens"), 2);
  EXPECT_EQ(document.at("timings").at("reply_tokens"), 2);
  EXPECT_GT(document.at("timings").at("prefill_ms"), 0);
  EXPECT_FALSE(document.contains("error"));
}

TEST_F(Report, NamesTheReasonOfTheEnd) {
  EXPECT_EQ(json_of(run("y", {"-o", "json", "-n", "3"})).at("finish_reason"), "length");
  const auto context = json_of(run("y", {"-o", "json", "-n", "-1", "-c", "32"}));
  EXPECT_EQ(context.at("finish_reason"), "context");
  EXPECT_EQ(context.at("prompt_ids").size() + context.at("ids").size(), 32U);
}

TEST_F(Report, AContextThatEndsAReplyIsSaidAndIsNoFailure) {
  const ProcessResult result = run("y", {"-n", "-1", "-c", "16"});
  EXPECT_EQ(result.exit_code, 0);
  expect_mentions(result.err, {"16", "context"});
}

TEST_F(Report, OneSeedOneReplyAndARandomSeedIsTold) {
  const auto first = json_of(run("y", {"-o", "json", "-n", "2"}));
  const auto second = json_of(run("y", {"-o", "json", "-n", "2"}));
  EXPECT_NE(first.at("seed"), second.at("seed"));
  EXPECT_EQ(first.at("sampling").at("seed").at("from"), "random");
}

TEST_F(Report, LinesAreAPieceEachAndThenTheDocument) {
  const ProcessResult result = run("y", {"-o", "jsonl", "-n", "4"});
  const std::vector<std::string> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 5U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(nlohmann::json::parse(lines[i]).at("text"), i % 2 == 0 ? "tick" : "y");
  }
  EXPECT_EQ(nlohmann::json::parse(lines[4]).at("text"), "tickyticky");
  EXPECT_EQ(nlohmann::json::parse(lines[4]).at("finish_reason"), "length");
}

TEST_F(Report, LogProbabilitiesAreSortedAndBelongToTheTokens) {
  const auto document = json_of(run("x", {"-o", "json", "--logprobs", "3"}));
  const auto& logprobs = document.at("logprobs");
  ASSERT_EQ(logprobs.size(), 2U);
  const auto& first = logprobs.at(0);
  EXPECT_EQ(first.at("token"), "Hi");
  EXPECT_EQ(first.at("id"), document.at("ids").at(0));
  ASSERT_EQ(first.at("top").size(), 3U);
  EXPECT_EQ(first.at("top").at(0).at("id"), first.at("id"));
  EXPECT_EQ(first.at("top").at(0).at("logprob"), first.at("logprob"));
  EXPECT_GE(first.at("top").at(1).at("logprob"), first.at("top").at(2).at("logprob"));
  // The scripted token leads by some 20 logits, so it has nearly all of the probability.
  EXPECT_LE(first.at("logprob"), 0.0);
  EXPECT_GT(first.at("logprob"), -1e-3);
}

void expect_error_document(const ProcessResult& result, int code, const std::string& kind) {
  EXPECT_EQ(result.exit_code, code) << result.err;
  const auto document = json_of(result);
  ASSERT_TRUE(document.contains("error")) << result.out;
  EXPECT_EQ(document.at("error").at("code"), code);
  EXPECT_EQ(document.at("error").at("kind"), kind);
  EXPECT_FALSE(document.at("error").at("message").get<std::string>().empty());
}

TEST_F(Report, FailuresAreOneDocumentWithAnError) {
  expect_error_document(fut({"run", "-m", "/nowhere", "-p", "x", "-o", "json"}), 3, "data");
  expect_error_document(fut({"run", "-m", "/nowhere", "-p", "x", "-o", "jsonl"}), 3, "data");
  expect_error_document(run("x", {"-o", "json", "-n", "abc"}), 2, "usage");
  expect_error_document(run("x", {"--output=json", "--bogus"}), 2, "usage");
  expect_error_document(run("x", {"-o", "json", "-c", "2"}), 4, "capacity");
  expect_error_document(run("x", {"-o", "json", "--device", "cuda:9"}), 5, "device");
  expect_error_document(fut({"inspect", "-m", "/nowhere", "-o", "json"}), 3, "data");
  expect_error_document(fut({"tokenize", "-m", "/nowhere", "-p", "x", "-o", "json"}), 3, "data");
  const ProcessResult by_variable =
      fut({"run", "-m", "/nowhere", "-p", "x"}, with_variables({{"FUT_OUTPUT", "json"}}));
  expect_error_document(by_variable, 3, "data");
}

TEST_F(Report, GoesToTheOutputFile) {
  const auto file = *script->folder / "report.json";
  const ProcessResult result = run("x", {"-o", "json", "--output-file", file.string()});
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(nlohmann::json::parse(read_file(file)).at("text"), "Hi");
  const ProcessResult failed =
      fut({"run", "-m", "/nowhere", "-p", "x", "-o", "json", "--output-file", file.string()});
  EXPECT_EQ(failed.exit_code, 3);
  EXPECT_EQ(nlohmann::json::parse(read_file(file)).at("error").at("code"), 3);
}

TEST_F(Report, WeightsThatAreNotNumbersEndTheRunWithAnErrorDocument) {
  Script broken;
  broken.model.link("x", "y", std::numeric_limits<float>::quiet_NaN());
  const std::string path = broken.write();
  const ProcessResult result = fut({"run", "-m", path, "--raw", "-p", "x", "-o", "json"});
  expect_error_document(result, 1, "runtime");
  EXPECT_EQ(json_of(result).at("finish_reason"), "error");
  EXPECT_EQ(json_of(result).at("text"), "");
  expect_mentions(result.err, {"not finite"});
  // They are found before anything runs where that is asked for.
  expect_failure(fut({"run", "-m", path, "--raw", "-p", "x", "--check-tensors"}), 3,
                 {"lm_head.weight"});
}

}  // namespace
}  // namespace fut::test
