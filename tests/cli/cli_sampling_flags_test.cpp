// Sampling as the command line offers it: extremes, ranges, defaults from the model's files.
#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

// After x: "A" with a lead of about one logit over "B". After y: a tie of "low" and "high".
class SamplingFlags : public ::testing::Test {
 protected:
  static Script make() {
    Script result;
    result.model.token("low");
    result.model.token("high");
    result.model.link("x", "A", 1.0F);
    result.model.link("x", "B", 0.95F);
    result.model.link("y", "low", 1.0F);
    result.model.link("y", "high", 1.0F);
    return result;
  }
  static void SetUpTestSuite() {
    script = std::make_unique<Script>(make());
    model = script->write();
  }
  static void TearDownTestSuite() { script.reset(); }
  static ProcessResult next(std::vector<std::string> more, const std::string& prompt = "x") {
    std::vector<std::string> words = {"run", "-m", model, "--raw", "-p", prompt, "-n", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return fut(std::move(words));
  }
  static std::unique_ptr<Script> script;
  static std::string model;
};
std::unique_ptr<Script> SamplingFlags::script;
std::string SamplingFlags::model;

TEST_F(SamplingFlags, ExtremesThatMeanGreedy) {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--temp", "0"},
           {"--temp", "-0.0"},
           {"--temp", "1e-5"},
           {"--temp", "1e-30"},
           {"--temp", "1e-45"},
           {"--greedy"},
           {"--temp", "100", "--top-p", "1e-9"},
           {"--temp", "100", "--top-k", "1"},
           {"--temp", "100", "--min-p", "1"},
           {"--temp", "1", "--top-p", "1e-9", "--top-k", "1", "--min-p", "1"}}) {
    for (const char* seed : {"1", "2", "3"}) {
      std::vector<std::string> all = flags;
      all.insert(all.end(), {"--seed", seed});
      expect_success(next(all), "A");
    }
  }
}

TEST_F(SamplingFlags, TiesGoToTheLowerId) {
  expect_success(next({"--temp", "0"}, "y"), "low");
}

TEST_F(SamplingFlags, ExtremesThatRunWithoutFault) {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--temp", "100"},
           {"--temp", "1e30"},
           {"--temp", "1", "--top-p", "1"},
           {"--temp", "1", "--top-k", "0"},
           {"--temp", "1", "--top-k", "-1"},
           {"--temp", "1", "--top-k", "1000000"},
           {"--temp", "1", "--min-p", "0"},
           {"--temp", "1", "--repeat-penalty", "1e30"},
           {"--temp", "1", "--repetition-penalty", "1", "--repeat-last-n", "-1"},
           {"--temp", "1", "--presence-penalty", "-2", "--frequency-penalty", "2"},
           {"--temp", "1", "--repeat-penalty", "1e30"},
           {"--temp", "1", "--sampler-order", "hf"}}) {
    std::vector<std::string> all = flags;
    all.insert(all.end(), {"--seed", "1", "-o", "json", "--logprobs", "5"});
    const ProcessResult result = next(all);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto document = json_of(result);
    ASSERT_EQ(document.at("logprobs").size(), 1U);
    EXPECT_EQ(document.at("logprobs").at(0).at("top").size(), 5U);
    EXPECT_TRUE(document.at("logprobs").at(0).at("logprob").is_number());
  }
}

TEST_F(SamplingFlags, ValuesOutsideTheirRangeNameFlagAndRange) {
  struct Case {
    std::string flag, value, allowed;
  };
  std::vector<Case> cases = {{"--temp", "-1", "0"},
                             {"--top-p", "0", "above 0"},
                             {"--top-p", "1.0000001", "1"},
                             {"--top-p", "-0.5", "above 0"},
                             {"--min-p", "1.5", "1"},
                             {"--min-p", "-0.1", "0"},
                             {"--top-k", "-2", "-1"},
                             {"--top-k", "1.5", "-1"},
                             {"--repeat-penalty", "0", "above 0"},
                             {"--repeat-penalty", "-1", "above 0"},
                             {"--repeat-last-n", "-2", "-1"}};
  for (const char* flag : {"--temp", "--temperature", "--top-p", "--min-p", "--repeat-penalty",
                           "--presence-penalty"}) {
    for (const char* value : {"nan", "inf", "0,5", "", "1e400", "half"}) {
      cases.push_back({flag, value, "allowed"});
    }
  }
  for (const Case& c : cases) {
    SCOPED_TRACE(c.flag + "=" + c.value);
    expect_failure(next({c.flag + "=" + c.value}), 2, {c.flag, "'" + c.value + "'", c.allowed});
  }
}

TEST_F(SamplingFlags, OneSeedGivesOneReply) {
  const auto reply = [&](const char* seed) {
    std::vector<std::string> words = {"run", "-m", model,    "--raw", "-p",     "x",
                                      "-n",  "64", "--temp", "2",     "--seed", seed};
    return fut(words).out;
  };
  EXPECT_EQ(reply("11"), reply("11"));
  EXPECT_NE(reply("11"), reply("12"));
}

TEST_F(SamplingFlags, DefaultsComeFromTheGenerationConfigAndFlagsWin) {
  const auto settings = [](const Script& s, std::vector<std::string> more) {
    std::vector<std::string> words = {"run", "-m", s.write(), "--raw", "-p",
                                      "x",   "-n", "1",       "-o",    "json"};
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult result = fut(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json_of(result).at("sampling");
  };
  Script sampling = make();
  sampling.model.files.generation_patch = {
      {"do_sample", true}, {"temperature", 0.6}, {"top_p", 0.9}, {"top_k", 7}};
  EXPECT_EQ(settings(sampling, {}).at("temperature").at("value"), 0.6);
  EXPECT_EQ(settings(sampling, {}).at("temperature").at("from"), "generation_config.json");
  EXPECT_EQ(settings(sampling, {}).at("top_k").at("value"), 7);
  EXPECT_EQ(settings(sampling, {"--temp", "0.2"}).at("temperature").at("value"), 0.2);
  EXPECT_EQ(settings(sampling, {"--temp", "0.2"}).at("temperature").at("from"), "flag");

  Script greedy = make();
  greedy.model.files.generation_patch = {{"do_sample", false}, {"temperature", 0.6}};
  EXPECT_EQ(settings(greedy, {}).at("temperature").at("value"), 0);
  EXPECT_EQ(settings(greedy, {"--temp", "1"}).at("temperature").at("value"), 1);

  Script bare = make();
  bare.model.files.generation_config = false;
  EXPECT_EQ(settings(bare, {}).at("temperature").at("value"), 0);
  EXPECT_EQ(settings(bare, {}).at("temperature").at("from"), "default");
}

TEST_F(SamplingFlags, ABadValueInTheGenerationConfigIsRefused) {
  Script bad = make();
  bad.model.files.generation_patch = {{"do_sample", true}, {"top_p", 1.5}};
  expect_failure(fut({"run", "-m", bad.write(), "--raw", "-p", "x"}), 3,
                 {"generation_config.json", "top_p", "1.5"});
}

TEST_F(SamplingFlags, FlagsThatCannotActAreSaid) {
  const ProcessResult result = next({"--top-k", "5"});
  expect_success(result, "A");
  expect_mentions(result.err, {"--temp"});
}

TEST_F(SamplingFlags, RepetitionIsPunishedWithinItsWindow) {
  Script loop;
  loop.model.link("x", "x", 1.0F);
  loop.model.link("x", "B", 0.95F);
  loop.model.link("B", "B", 1.0F);
  const std::string path = loop.write();
  const auto reply = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"run", "-m", path, "--raw", "-p", "x", "-n", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return fut(words).out;
  };
  EXPECT_EQ(reply({}), "x");
  EXPECT_EQ(reply({"--repeat-penalty", "1.5"}), "B");
  EXPECT_EQ(reply({"--repeat-penalty", "1.5", "--repeat-last-n", "0"}), "x");
  EXPECT_EQ(reply({"--presence-penalty", "5"}), "B");
  EXPECT_EQ(reply({"--frequency-penalty", "5"}), "B");
}

}  // namespace
}  // namespace fut::test
