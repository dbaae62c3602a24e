// fut bench --end-to-end: what its report holds in each form, and the comparison of two.
#include <csignal>
#include <map>
#include <set>

#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

class BenchLatency : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    script = std::make_unique<Script>();
    script->say("\n\n", {"Hi", "<|eot_id|>"});
    model = script->write();
  }
  static void TearDownTestSuite() { script.reset(); }
  static ProcessResult bench(std::vector<std::string> more) {
    std::vector<std::string> words = {"bench", "--end-to-end", "-m", model, "-r", "6"};
    words.insert(words.end(), more.begin(), more.end());
    return fut(std::move(words));
  }
  [[nodiscard]] std::string file(const std::string& name) const {
    return (folder.path() / name).string();
  }

  static std::unique_ptr<Script> script;
  static std::string model;
  TempFolder folder;
};
std::unique_ptr<Script> BenchLatency::script;
std::string BenchLatency::model;

TEST_F(BenchLatency, EverySettingIsARowWithAllItsStages) {
  const ProcessResult result = bench({"-p", "8,16", "-n", "4", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto document = json_of(result);
  EXPECT_EQ(document.at("mode"), "end-to-end");
  const auto& rows = document.at("latency");
  ASSERT_EQ(rows.size(), 2U);
  for (const auto& row : rows) {
    EXPECT_EQ(row.at("reply_tokens"), 4);
    const std::size_t repetitions = row.at("repetitions");
    EXPECT_GE(repetitions, 5U);
    EXPECT_EQ(row.at("samples").at("ttft_ms").size(), repetitions);
    EXPECT_EQ(row.at("itl_ms").at("count"), 3 * repetitions);
    const auto& stages = row.at("stages_ms");
    double sum = 0;
    for (const char* stage : {"render", "tokenize", "prefill"}) {
      sum += stages.at(stage).at("mean").get<double>();
    }
    EXPECT_NEAR(row.at("ttft_ms").at("mean").get<double>(), sum, 1e-9);
    EXPECT_GE(stages.at("detokenize").at("mean").get<double>(), 0);
    EXPECT_LE(row.at("itl_ms").at("p50"), row.at("itl_ms").at("p99"));
    std::size_t counted = 0;
    for (const auto& bin : row.at("itl_histogram")) counted += bin.at("count").get<std::size_t>();
    EXPECT_EQ(counted, 3 * repetitions);
  }
  EXPECT_EQ(rows.at(1).at("prompt_tokens"), 16);
}

TEST_F(BenchLatency, TextTellsWhatTheNumbersMean) {
  const ProcessResult result = bench({"-p", "8", "-n", "6"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_mentions(result.out, {"end to end", "first token", "prefill", "tokenize", "write",
                               "each token", "between two", "p99", "#", "+-", "95 % interval"});
}

TEST_F(BenchLatency, TablesAreTables) {
  const std::vector<std::string> csv = lines_of(bench({"-p", "8,9", "-n", "2", "-o", "csv"}).out);
  ASSERT_EQ(csv.size(), 3U);
  EXPECT_TRUE(csv[0].starts_with("prompt,reply,depth,batch,requests,ttft_ms"));
  EXPECT_EQ(std::ranges::count(csv[1], ','), std::ranges::count(csv[0], ','));
  EXPECT_TRUE(csv[2].starts_with("9,2,0,1,"));
  const std::vector<std::string> md = lines_of(bench({"-p", "8", "-n", "2", "-o", "md"}).out);
  ASSERT_EQ(md.size(), 3U);
  EXPECT_TRUE(md[1].starts_with("| ---: |"));
  const std::vector<std::string> lines =
      lines_of(bench({"-p", "8,9", "-n", "2", "-o", "jsonl"}).out);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(nlohmann::json::parse(lines[1]).at("prompt_tokens"), 9);
}

TEST_F(BenchLatency, DepthsAndBatchesAreSettingsToo) {
  const auto rows =
      json_of(bench({"-p", "8", "-n", "3", "-d", "0,32", "-o", "json"})).at("latency");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows.at(1).at("depth"), 32);
  const auto batches =
      json_of(bench({"-p", "8", "-n", "3", "-b", "1,2", "-o", "json"})).at("latency");
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_EQ(batches.at(1).at("itl_ms").at("count"),
            2 * batches.at(1).at("repetitions").get<std::size_t>());
}

TEST_F(BenchLatency, LengthsAskForWholeRequestsAndListsForASweep) {
  const ProcessResult result = fut({"bench", "-m", model, "-r", "2", "-p", "8,9", "-n", "2", "-d",
                                    "0,0k,16", "-b", "1,2", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto document = json_of(result);
  EXPECT_EQ(document.at("mode"), "end-to-end");
  // What stands in the cache is of one request.
  expect_mentions(result.err, {"left out 2 of 12 settings", "-b 1"});
  EXPECT_EQ(document.at("latency").size(), 10U);
  EXPECT_EQ(document.at("settings"), 10);
  EXPECT_EQ(document.at("settings_measured"), 10);
  for (const auto& row : document.at("latency")) {
    EXPECT_TRUE(row.at("depth") == 0 || row.at("batch") == 1) << row;
  }
  const ProcessResult table =
      fut({"bench", "-m", model, "-r", "2", "-n", "2", "-p", "8", "-o", "csv"});
  EXPECT_EQ(lines_of(table.out).size(), 2U) << table.err;
  // One that was not typed says how long requests would be, not that there are any.
  const ProcessResult steps = fut({"bench", "-m", model, "-r", "2", "-d", "8", "-o", "json"},
                                  with_variables({{"FUT_N_PROMPT", "8"}}));
  EXPECT_TRUE(json_of(steps).contains("step")) << steps.err;
}

TEST_F(BenchLatency, AnInterruptTellsHowManySettingsWereMeasured) {
  ProcessOptions options;
  options.arguments = {"bench", "-m", model, "-r", "6", "-p", "8-100+1", "-n", "16", "-o", "jsonl"};
  Process process(FUT_BINARY, on_cpu_in_f32(options));
  ASSERT_TRUE(process.wait_for_output("\"prompt_tokens\":9"));
  process.send_signal(SIGINT);
  const ProcessResult result = process.finish();
  EXPECT_EQ(result.exit_code, 130);
  const std::vector<std::string> lines = lines_of(result.out);
  const auto document = nlohmann::json::parse(lines.back());
  const std::size_t measured = document.at("settings_measured");
  EXPECT_GE(measured, 2U);
  EXPECT_EQ(measured, lines.size() - 1);
  EXPECT_EQ(measured, document.at("latency").size());
  EXPECT_EQ(document.at("settings"), 93);
  const std::string message =
      "interrupted; " + std::to_string(measured) + " of 93 settings were measured";
  EXPECT_EQ(document.at("error").at("message"), message);
  expect_mentions(result.err, {message});
}

TEST_F(BenchLatency, OneTokenIsAReplyWithoutRates) {
  const ProcessResult result = bench({"-p", "8", "-n", "1", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json_of(result).at("latency").at(0).at("itl_ms").at("count"), 0);
  EXPECT_EQ(result.out.find("null"), std::string::npos);
  EXPECT_EQ(result.out.find("inf"), std::string::npos);
}

TEST_F(BenchLatency, WithoutAPromptItIsDecodeAlone) {
  for (const char* depth : {"0", "32"}) {
    const ProcessResult result = bench({"-p", "0", "-n", "4", "-d", depth, "-o", "json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto row = json_of(result).at("latency").at(0);
    EXPECT_EQ(row.at("prompt_tokens"), 0);
    EXPECT_GT(row.at("tpot_ms").at("mean").get<double>(), 0);
    for (const char* bad : {"inf", "nan"}) EXPECT_EQ(result.out.find(bad), std::string::npos);
  }
}

TEST_F(BenchLatency, ReportsAreCompared) {
  const nlohmann::json row = {
      {"prompt_tokens", 8}, {"reply_tokens", 4}, {"depth", 0}, {"batch", 1}, {"noisy", false}};
  const auto report = [&](const std::string& name, const std::vector<double>& ttft,
                          const std::vector<double>& tpot, const char* prefill) {
    nlohmann::json r = row;
    r["samples"] = {{"ttft_ms", ttft}, {"tpot_ms", tpot}};
    write_file(
        file(name),
        nlohmann::json({{"model", "m"}, {"prefill_weights", prefill}, {"latency", {r}}}).dump());
  };
  report("old.json", {10, 10.1, 9.9, 10, 10.05}, {1, 1.1, 0.9, 1, 1.05}, "fp8");
  report("new.json", {8, 8.1, 7.9, 8, 8.05}, {1.02, 1.1, 0.92, 1, 1.0}, "int4");
  const ProcessResult result = fut({"bench", "--compare", file("old.json"), file("new.json")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_mentions(result.out,
                  {"first token", "-19.98", "faster", "each token", "no difference seen"});
  expect_mentions(result.err, {"another prefill_weights", "fp8", "int4"});
  const auto json = json_of(
      fut({"bench", "--compare", file("new.json"), "--with", file("old.json"), "-o", "json"}));
  EXPECT_EQ(json.at("comparison").at(0).at("metrics").at(0).at("verdict"), "slower");
  write_file(file("bad.json"), "{\"latency\": [{}]}");
  expect_failure(fut({"bench", "--compare", file("bad.json"), file("new.json")}), 3, {"bad.json"});
  // What is nested without end is refused before anything walks it.
  constexpr std::size_t kDeep = 100000;
  write_file(file("bad.json"),
             "{\"latency\": " + std::string(kDeep, '[') + std::string(kDeep, ']') + "}");
  expect_failure(fut({"bench", "--compare", file("new.json"), file("bad.json")}), 3,
                 {"bad.json", "nested more than 32 levels"});
  write_file(file("bad.json"), "{\"latency\": [");
  expect_failure(fut({"bench", "--compare", file("bad.json"), file("new.json")}), 3,
                 {"bad.json", "not JSON, at byte"});
  expect_failure(fut({"bench", "--compare", file("none.json"), file("new.json")}), 3,
                 {"none.json"});
  expect_failure(fut({"bench", "--compare", file("new.json")}), 2, {"--compare OLD.json NEW.json"});
}

TEST_F(BenchLatency, SettingsThatOnlyOneReportHasAreCounted) {
  const auto report = [&](const std::string& name, const std::vector<int>& prompts) {
    nlohmann::json rows = nlohmann::json::array();
    for (const int prompt : prompts) {
      rows.push_back({{"prompt_tokens", prompt},
                      {"reply_tokens", 4},
                      {"depth", 0},
                      {"batch", 1},
                      {"noisy", false},
                      {"samples", {{"ttft_ms", {1, 1.1, 0.9}}, {"tpot_ms", {1, 1.1, 0.9}}}}});
    }
    write_file(file(name), nlohmann::json({{"latency", rows}}).dump());
    return file(name);
  };
  const std::string old_file = report("old.json", {8, 16, 32});
  const std::string new_file = report("new.json", {16, 64, 128, 256});
  const ProcessResult result = fut({"bench", "--compare", old_file, new_file, "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_mentions(result.err, {old_file + ": 2 of 3 settings", new_file + ": 3 of 4 settings"});
  const nlohmann::json alone = {{"old", 2}, {"new", 3}};
  EXPECT_EQ(json_of(result).at("not_compared"), alone);
  EXPECT_EQ(json_of(result).at("comparison").size(), 1U);
  const ProcessResult in_lines = fut({"bench", "--compare", old_file, new_file, "-o", "jsonl"});
  EXPECT_EQ(nlohmann::json::parse(lines_of(in_lines.out).back()).at("not_compared"), alone);
  EXPECT_EQ(fut({"bench", "--compare", old_file, old_file}).err, "");
}

TEST_F(BenchLatency, APictureIsDrawn) {
  const ProcessResult result = bench({"-p", "8", "-n", "8", "--plot", file("out.svg")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string svg = read_file(file("out.svg"));
  EXPECT_TRUE(svg.starts_with("<svg"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  expect_mentions(svg, {"roofline", "attention: ", "ms between tokens", "prefers-color-scheme"});
}

TEST_F(BenchLatency, TellsWhatTheMachineDid) {
  const ProcessResult result = bench({"-p", "8", "-n", "4", "--energy", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto row = json_of(result).at("latency").at(0);
  for (const char* key : {"throttled", "shared", "slowed_by", "others"}) {
    EXPECT_TRUE(row.at("machine").contains(key)) << key;
  }
  EXPECT_EQ(row.at("machine").at("shared"), !row.at("machine").at("others").empty());
  const auto& energy = row.at("energy");  // null where the machine does not tell
  if (!energy.is_null()) {
    EXPECT_EQ(energy.at("tokens"), 4 * row.at("repetitions").get<int>());
    EXPECT_GT(energy.at("joules_per_token").get<double>(), 0);
  }
  EXPECT_FALSE(
      json_of(bench({"-p", "8", "-n", "2", "-o", "json"})).at("latency").at(0).contains("energy"));
  expect_mentions(bench({"-p", "8", "-n", "2", "--energy"}).out, {"  energy  "});
}

TEST_F(BenchLatency, MarksOfTheMachineAreRememberedInComparisons) {
  nlohmann::json row = {
      {"prompt_tokens", 8}, {"reply_tokens", 4}, {"depth", 0}, {"batch", 1}, {"noisy", false}};
  row["samples"] = {{"ttft_ms", {1, 1.1, 0.9}}, {"tpot_ms", {1, 1.1, 0.9}}};
  write_file(file("old.json"), nlohmann::json({{"latency", {row}}}).dump());
  row["machine"] = {{"throttled", true}, {"shared", true}};
  write_file(file("new.json"), nlohmann::json({{"latency", {row}}}).dump());
  expect_mentions(fut({"bench", "--compare", file("old.json"), file("new.json")}).out,
                  {"a run was throttled and shared, measure again"});
}

TEST_F(BenchLatency, TheOpsOfAStepAreShownBesideTheRoof) {
  const ProcessResult result = bench({"-p", "8", "-n", "2", "-v"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_mentions(result.out,
                  {"ops of a decode step", "gate_up_swiglu", "attention", "lm_head", "%"});
}

// What a machine does between two runs is no difference of theirs: where the verdict sees one, runs that
// follow in turn must not see it again in the same direction.
TEST_F(BenchLatency, TwoRunsAgree) {
  const auto measured = [&](const std::string& name) {
    const ProcessResult result = fut(
        {"bench", "--end-to-end", "-m", model, "-p", "8", "-n", "16", "-r", "20", "-o", "json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    write_file(file(name), result.out);
  };
  std::map<std::string, std::set<std::string>> verdicts;
  constexpr int kMostTurns = 4;
  for (int turn = 0; turn < kMostTurns; ++turn) {
    measured("old.json");
    measured("new.json");
    const auto c =
        json_of(fut({"bench", "--compare", file("old.json"), file("new.json"), "-o", "json"}));
    bool agree = true;
    for (const auto& metric : c.at("comparison").at(0).at("metrics")) {
      auto& seen = verdicts[metric.at("metric")];
      seen.insert(metric.at("verdict"));
      agree = agree && (seen.contains("no difference seen") || seen.size() == 2);
    }
    if (agree) return;
  }
  FAIL() << "two runs of the same differ in the same direction " << kMostTurns << " times";
}

TEST_F(BenchLatency, APictureThatCannotBeWrittenIsFoundFirst) {
  expect_failure(bench({"-p", "8", "--plot", "/nowhere/out.svg"}), 1, {"/nowhere/out.svg"});
  write_file(file("shape.json"), "{}");
  expect_failure(
      fut({"bench", "--end-to-end", "--dummy", file("shape.json"), "--plot", file("shape.json")}),
      2, {"--plot", "is the input"});
  EXPECT_EQ(read_file(file("shape.json")), "{}");
}

TEST_F(BenchLatency, APictureAndAReportAreTwoFiles) {
  write_file(file("both"), "before");
  std::filesystem::create_symlink("both", file("link"));
  for (const char* output : {"both", "link"}) {
    expect_failure(bench({"-p", "8", "--plot", file("both"), "--output-file", file(output)}), 2,
                   {"--plot", "--output-file", "the same file"});
    EXPECT_EQ(read_file(file("both")), "before");
  }
  expect_failure(bench({"-p", "8", "--plot", file("new"), "--output-file", file("new")}), 2,
                 {"--plot", "--output-file", "the same file"});
}

TEST_F(BenchLatency, FlagsThatDoNothingAreRefused) {
  expect_failure(fut({"bench", "-m", model, "-o", "csv"}), 2, {"csv", "-p, -n or --end-to-end"});
  expect_failure(fut({"bench", "-m", model, "--prompts", "8", "--plot", "x.svg"}), 2,
                 {"--plot", "--prompts", "exclude"});
  expect_failure(fut({"bench", "-m", model, "--prompts", "8", "--energy"}), 2,
                 {"--energy", "--prompts", "exclude"});
  expect_failure(bench({"--compare", "a", "b"}), 2, {"--compare", "--end-to-end", "exclude"});
  expect_failure(bench({"--prompts", "16"}), 2, {"--prompts", "--end-to-end", "exclude"});
  for (const char* flag : {"-p", "-n"}) {
    expect_failure(fut({"bench", "-m", model, flag, "2", "--prompts", "16"}), 2,
                   {flag, "--prompts", "exclude"});
    expect_failure(fut({"bench", "-m", model, flag, "2", "--warm-up", "3"}), 2,
                   {flag, "--warm-up", "exclude"});
  }
  expect_failure(bench({"--dummy", "llama-3.1-8b"}), 2, {"--dummy", "-m", "exclude"});
  for (const char* flag : {"-p", "-b", "-d", "-r", "--prompts", "--layers"}) {
    expect_failure(fut({"bench", "--compare", "a", "b", flag, "2"}), 2,
                   {flag, "--compare", "exclude"});
  }
  expect_failure(fut({"bench", model}), 2, {model, "belongs to no flag", "-m"});
  expect_failure(bench({"-p", "5000"}), 2, {"5065", "1024"});
  expect_failure(bench({"-p", "-1"}), 2, {"-p", "-1"});
  expect_failure(bench({"-p", "2147483647"}), 2, {"2147483712", "1024"});
  expect_failure(bench({"-n", "2147483647", "-d", "2147483647"}), 2, {"4294967423", "1024"});
  expect_failure(bench({"-b", "2,4", "-d", "16"}), 2, {"-d 16", "-b is 2,4"});
  expect_failure(bench({"-b", "1,x"}), 2, {"-b", "'x'", "1 to 4096", "16,32"});
}

}  // namespace
}  // namespace fut::test
