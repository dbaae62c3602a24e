// How the command line is read: spellings, values byte for byte, mistakes, environment and
// configuration file.
#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

// Says "Hi" to x in raw text and to everything in the chat form.
class CommandLine : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    script = std::make_unique<Script>();
    script->say("x", {"Hi", "<|eot_id|>"}).say("\n\n", {"Hi"});
    model = script->write();
  }
  static void TearDownTestSuite() { script.reset(); }

  static ProcessResult raw(std::vector<std::string> more, ProcessOptions options = {}) {
    std::vector<std::string> words = {"run", "-m", model, "--raw"};
    words.insert(words.end(), more.begin(), more.end());
    return fut(std::move(words), std::move(options));
  }

  static std::unique_ptr<Script> script;
  static std::string model;
};
std::unique_ptr<Script> CommandLine::script;
std::string CommandLine::model;

TEST_F(CommandLine, HelpAndVersionGoToStandardOutputAndTouchNoModel) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--help"},
                                             {"-h"},
                                             {"run", "--help"},
                                             {"chat", "-h"},
                                             {"tokenize", "--help"},
                                             {"inspect", "--help"},
                                             {"quantize", "--help"},
                                             {"perplexity", "-h"},
                                             {"run", "-m", "/nowhere", "--help"}}) {
    const ProcessResult result = fut(words);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
    expect_mentions(result.out, {"Usage: fut", "--help"});
  }
  const ProcessResult version = fut({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.err, "");
  expect_mentions(version.out, {"fut 0.", "commit ", "compiler ", "CUDA toolkit "});
}

TEST_F(CommandLine, EveryFlagOfHelpIsExplained) {
  const ProcessResult help = fut({"run", "--help"});
  expect_mentions(help.out, {"-m,--model", "-sys", "-sysf", "--n-predict", "--max-tokens", "--stop",
                             "--chat-template", "llama-3.1", "Exit codes", "U+FFFD"});
}

TEST_F(CommandLine, UnknownFlagsAndCommandsSuggestTheNearest) {
  expect_failure(raw({"-p", "x", "--tempp", "1"}), 2, {"--tempp", "--temp"});
  expect_failure(raw({"-p", "x", "--max-token=4"}), 2, {"--max-token", "--max-tokens"});
  expect_failure(raw({"-p", "x", "-sy", "y"}), 2, {"-sy", "-sys"});
  expect_failure(fut({"rum"}), 2, {"rum", "run"});
  expect_failure(fut({"tokenise"}), 2, {"tokenise", "tokenize"});
  expect_failure(fut({"--verion"}), 2, {"--verion", "--version"});
  expect_failure(fut({"-m", model}), 2, {"-m", "fut run"});
  expect_failure(fut({}), 2, {"fut --help"});
  expect_failure(raw({"x"}), 2, {"'x'", "-p"});
  expect_failure(fut({"perplexity", "--temp", "1"}), 2, {"--temp", "fut run"});
  const ProcessResult stray = fut({"quantize", "x"});
  expect_failure(stray, 2, {"'x'", "-m"});
  EXPECT_EQ(stray.err.find("prompt"), std::string::npos);
}

TEST_F(CommandLine, FlagsNeedTheirValueAndAreGivenOnce) {
  expect_failure(raw({"-p"}), 2, {"-p"});
  expect_failure(raw({"-p", "--greedy"}), 2, {"-p", "--greedy"});
  expect_failure(raw({"-p", "x", "--prompt", "y"}), 2, {"--prompt", "twice"});
  expect_failure(raw({"-p", "x", "--seed", "1", "-s", "1"}), 2, {"-s", "twice"});
  expect_failure(raw({"-p", "x", "--greedy=1"}), 2, {"--greedy"});
  expect_failure(raw({"-p", "x", "--temp", "1", "--greedy"}), 2, {"--temp", "--greedy"});
  expect_failure(raw({"-p", "x", "-f", "y"}), 2, {"-p", "-f"});
  expect_failure(raw({"-p", "x", "-sys", "y"}), 2, {"-sys", "--raw"});
}

TEST_F(CommandLine, NumbersOutOfRangeNameFlagAndRange) {
  struct Case {
    std::string flag, value, range;
  };
  const std::vector<Case> cases = {{"-n", "abc", "2147483647"},
                                   {"-n", "99999999999", "2147483647"},
                                   {"-n", "0", "-1"},
                                   {"-n", "-2", "-1"},
                                   {"-n", "", "-1"},
                                   {"-n", "5x", "-1"},
                                   {"-c", "0", "2"},
                                   {"-c", "-5", "2"},
                                   {"-c", "many", "2"},
                                   {"-t", "0", "1"},
                                   {"--logprobs", "0", "1"},
                                   {"--verbosity", "6", "5"},
                                   {"--seed", "-2", "-1"},
                                   {"--device", "gpu", "cuda"},
                                   {"--device", "cuda:x", "99"},
                                   {"--precision", "f16", "f32"},
                                   {"--color", "blue", "auto"},
                                   {"--sampler-order", "x", "hf"},
                                   {"--truncate", "middle", "tail"},
                                   {"-o", "yaml", "jsonl"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.flag + " " + c.value);
    expect_failure(raw({"-p", "x", c.flag, c.value}), 2, {c.flag, "'" + c.value, c.range});
  }
}

TEST_F(CommandLine, AFileNameAfterDashOIsPointedToItsOwnFlag) {
  expect_failure(raw({"-p", "x", "-o", "out.txt"}), 2, {"out.txt", "--output-file"});
}

TEST_F(CommandLine, ShortAndLongSpellingsAndAttachedValues) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"-p", "x", "-n", "1"},
                                             {"--prompt", "x", "-n1"},
                                             {"--prompt=x", "--predict=1"},
                                             {"-p=x", "-n=1"},
                                             {"-p", "x", "--n-predict", "1"},
                                             {"-p", "x", "--max-tokens", "1"},
                                             {"-p", "x", "--max-new-tokens", "1"},
                                             {"-p", "x", "-n", "-1"}}) {
    expect_success(raw(words), "Hi");
  }
}

// What tokenize prints for a prompt in these words; bytes are ids, so nothing can hide.
std::string ids_of(const std::string& model, const std::vector<std::string>& words) {
  std::vector<std::string> all = {"tokenize", "-m", model, "--no-bos"};
  all.insert(all.end(), words.begin(), words.end());
  const ProcessResult result = fut(all);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

TEST_F(CommandLine, ValuesAreTakenByteForByte) {
  EXPECT_EQ(ids_of(model, {"-p", "[1,2]"}), "91 49 44 50 93\n");
  EXPECT_EQ(ids_of(model, {"--prompt=[1,2]"}), "91 49 44 50 93\n");
  EXPECT_EQ(ids_of(model, {"-p", ""}), "\n");
  EXPECT_EQ(ids_of(model, {"-p", "%%"}), "37 37\n");
  EXPECT_EQ(ids_of(model, {"-p", "{}"}), "123 125\n");
  EXPECT_EQ(ids_of(model, {"-p", "\"a\""}), "34 97 34\n");
  EXPECT_EQ(ids_of(model, {"-p=-x"}), "45 120\n");
  EXPECT_EQ(ids_of(model, {"--prompt=--raw"}), "45 45 114 97 119\n");
  EXPECT_EQ(ids_of(model, {"-p", "-1"}), "45 49\n");
  EXPECT_EQ(ids_of(model, {"-p", "- x"}), "45 32 120\n");
  EXPECT_EQ(ids_of(model, {"-p==a"}), "61 97\n");
  EXPECT_EQ(ids_of(model, {"-p", "\xFF"}), "255\n");
}

TEST_F(CommandLine, EscapesAreInterpretedInTypedPromptsOnly) {
  EXPECT_EQ(ids_of(model, {"-p", "a\\nb\\t\\x41\\\\\\q"}), "97 10 98 9 65 92 92 113\n");
  EXPECT_EQ(ids_of(model, {"--no-escape", "-p", "\\n"}), "92 110\n");
  write_file(*script->folder / "text", "\\n");
  EXPECT_EQ(ids_of(model, {"-f", (*script->folder / "text").string()}), "92 110\n");
  const ProcessResult piped = fut({"tokenize", "-m", model, "--no-bos"}, with_input("\\n"));
  EXPECT_EQ(piped.out, "92 110\n");
}

TEST_F(CommandLine, StopTextsWithBracketsAndCommasStayWhole) {
  Script other;
  other.say("x", {"A", "[INST]", "B", "<|eot_id|>"});
  const std::string folder = other.write();
  expect_success(fut({"run", "-m", folder, "--raw", "-p", "x", "--stop", "[INST]"}), "A");
  expect_success(fut({"run", "-m", folder, "--raw", "-p", "x", "--stop", "[B,A]"}), "A[INST]B");
}

TEST_F(CommandLine, EnvironmentVariablesStandForLongFlags) {
  expect_success(raw({}, with_variables({{"FUT_PROMPT", "x"}})), "Hi");
  expect_success(raw({"-p", "x"}, with_variables({{"FUT_PROMPT", "y"}})), "Hi");
  expect_success(fut({"run", "-p", "x"}, with_variables({{"FUT_MODEL", model}, {"FUT_RAW", "on"}})),
                 "Hi");
  expect_failure(raw({"-p", "x"}, with_variables({{"FUT_TOP_P", "2"}})), 2, {"FUT_TOP_P", "1"});
  expect_failure(raw({"-p", "x"}, with_variables({{"FUT_GREEDY", "maybe"}})), 2, {"FUT_GREEDY"});
  expect_success(raw({"-p", "x", "--top-p", "1"}, with_variables({{"FUT_TOP_P", "2"}})), "Hi");
  // An alias has its variable too; an empty one counts as not set.
  expect_success(raw({"-p", "x"}, with_variables({{"FUT_MAX_TOKENS", "1"}, {"FUT_STOP", ""}})),
                 "Hi");
}

TEST_F(CommandLine, AFalseVariableBeatsTheFileAndExcludesNothing) {
  const std::string config = (*script->folder / "false.conf").string();
  write_file(config, "raw = true\n");
  const ProcessResult chat_form =
      fut({"run", "-m", model, "-p", "x", "-n", "1", "--config", config},
          with_variables({{"FUT_RAW", "0"}}));
  expect_success(chat_form, "Hi\n");  // the newline of the chat form
  expect_success(raw({"-p", "x"}, with_variables({{"FUT_GREEDY", "0"}, {"FUT_TEMP", "0"}})), "Hi");
}

TEST_F(CommandLine, AFlagBeatsAVariableThatItExcludes) {
  expect_success(raw({"-p", "x"}, with_variables({{"FUT_SYSTEM_PROMPT", "y"}})), "Hi");
  expect_success(raw({"-p", "x", "--greedy"}, with_variables({{"FUT_TEMP", "9"}})), "Hi");
  expect_success(raw({"-p", "x"}, with_variables({{"FUT_FILE", "/nowhere"}})), "Hi");
}

TEST_F(CommandLine, AConfigurationFileHoldsFlagsOfEveryCommand) {
  const std::string config = (*script->folder / "fut.conf").string();
  write_file(config, "# comment\n\nprompt = x\n raw=true\npieces = off\ntop-p = 0.5\n");
  expect_success(fut({"run", "-m", model, "--config", config}), "Hi");
  expect_success(fut({"run", "-m", model}, with_variables({{"FUT_CONFIG", config}})), "Hi");
  write_file(config, "prompt = x\ntopp = 1\n");
  expect_failure(raw({"--config", config}), 2, {"fut.conf:2", "topp", "top-p"});
  // A flag of one letter is no setting to suggest.
  write_file(config, "foo = 1\n");
  const std::string unknown = raw({"--config", config}).err;
  expect_mentions(unknown, {"fut.conf:1", "unknown setting 'foo'"});
  EXPECT_EQ(unknown.find("did you mean ?"), std::string::npos) << unknown;
  write_file(config, "prompt = x\ntop-p = 3\n");
  expect_failure(raw({"--config", config}), 2, {"fut.conf:2", "top-p"});
  expect_success(raw({"--config", config, "--top-p", "1"}), "Hi");
  expect_failure(raw({"--config", "/nowhere/f"}), 3, {"/nowhere/f"});
}

TEST_F(CommandLine, FlagsThatWouldDoNothingAreRefused) {
  expect_failure(raw({"-p", "x", "--logprobs", "2"}), 2, {"--logprobs", "-o json"});
  expect_failure(fut({"tokenize", "-m", model, "-p", "x", "--render"}), 2, {"--messages"});
  expect_failure(fut({"tokenize", "-m", model, "-p", "x", "--messages", "f"}), 2, {"--messages"});
}

TEST(Environment, FlagsThatACommandHasNoUseForArePassedOver) {
  Script script;
  script.say("x", {"Hi"});
  const std::string model = script.write();
  const auto shared = with_variables({{"FUT_CHAT_TEMPLATE", "llama-3.1"},
                                      {"FUT_DATE", "26 Jul 2024"},
                                      {"FUT_LOGPROBS", "3"},
                                      {"FUT_RENDER", "on"}});
  EXPECT_EQ(fut({"tokenize", "-m", model, "-p", "x"}, shared).exit_code, 0);
  expect_success(fut({"run", "-m", model, "--raw", "-p", "x", "-n", "1"}, shared), "Hi");
  EXPECT_EQ(json_of(fut({"run", "-m", model, "--raw", "-p", "x", "-n", "1", "-o", "json"}, shared))
                .at("logprobs")
                .at(0)
                .at("top")
                .size(),
            3U);
  // Typed, they are a mistake.
  expect_failure(fut({"tokenize", "-m", model, "-p", "x", "--date", "1 May 2024"}), 2,
                 {"--messages"});
  expect_failure(fut({"run", "-m", model, "-p", "x", "--logprobs", "3"}), 2, {"-o json"});
}

}  // namespace
}  // namespace fut::test
