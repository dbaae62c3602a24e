// fut bench: what it reports, in which form, and what it refuses.
#include <map>

#include "tests/cli/quantized_case.h"

namespace fut::test {
namespace {

ProcessResult bench(std::vector<std::string> more) {
  std::vector<std::string> words = {"bench", "--device", "cpu",       "-d", "20",
                                    "-r",    "3",        "--warm-up", "1"};
  words.insert(words.end(), more.begin(), more.end());
  return fut(words);
}

// The shape of a small model, without a model.
std::string config_file(const TempFolder& folder) {
  const std::string file = (folder.path() / "shape.json").string();
  write_file(file, R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 300,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0})");
  return file;
}

TEST(Bench, ReportsAStepBesideTheRoofOfTheSameRun) {
  const TempFolder folder;
  for (const char* precision : {"int4", "fp8", "bf16"}) {
    const ProcessResult result =
        bench({"--dummy", config_file(folder), "--precision", precision, "-b", "3", "-o", "json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto r = json_of(result);
    EXPECT_EQ(r.at("precision"), precision);
    EXPECT_EQ(r.at("batch"), 3);
    EXPECT_EQ(r.at("depth"), 20);
    const auto& step = r.at("step");
    EXPECT_GT(step.at("us").get<double>(), 0);
    EXPECT_LE(step.at("us").get<double>(), step.at("us_p99").get<double>());
    EXPECT_GT(r.at("read_roof_bytes_per_second").get<double>(), 1e8);
    EXPECT_DOUBLE_EQ(step.at("of_roof").get<double>(),
                     step.at("bytes").get<double>() /
                         r.at("read_roof_bytes_per_second").get<double>() * 1e6 /
                         step.at("us").get<double>());
    EXPECT_DOUBLE_EQ(r.at("tokens_per_second").get<double>(),
                     3 / step.at("us").get<double>() * 1e6);
    EXPECT_FALSE(r.contains("ops"));
  }
}

TEST(Bench, MeasuresEachBatchAtEachDepth) {
  const TempFolder folder;
  const std::string picture = (folder.path() / "steps.svg").string();
  const std::vector<std::string> words = {
      "bench",   "--device",          "cpu", "-r",  "2",  "--warm-up", "0",
      "--dummy", config_file(folder), "-b",  "1,3", "-d", "0,16-32*2"};
  const auto sweep = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    more.insert(more.end(), {"--precision", "bf16"});
    const ProcessResult result = fut(std::move(more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  };
  const auto r = json_of(sweep({"--plot", picture, "-o", "json"}));
  ASSERT_EQ(r.at("steps").size(), 6U);
  EXPECT_EQ(r.at("settings_measured"), 6);
  EXPECT_FALSE(r.contains("step"));
  std::size_t at = 0;
  for (const int batch : {1, 3}) {
    for (const int depth : {0, 16, 32}) {
      const auto& row = r.at("steps").at(at++);
      EXPECT_EQ(row.at("batch"), batch);
      EXPECT_EQ(row.at("depth"), depth);
      EXPECT_GT(row.at("step").at("us").get<double>(), 0);
    }
  }
  expect_mentions(read_file(picture),
                  {"decode step, depth 0, batch 1", "decode step, depth 32, batch 3", "roofline"});
  EXPECT_EQ(lines_of(sweep({"-o", "jsonl"}).out).size(), 7U);
  expect_mentions(sweep({}).out,
                  {"cache bf16\nbatch 1, depth 0: step ", "\nbatch 3, depth 32: step "});
}

TEST(Bench, ADepthThatNobodyGaveIsOneThatTheModelHas) {
  const TempFolder folder;
  const auto r = json_of(fut({"bench", "--device", "cpu", "-r", "2", "--warm-up", "0", "--dummy",
                              config_file(folder), "--precision", "bf16", "-o", "json"}));
  EXPECT_EQ(r.at("depth"), 511);
  const auto most = json_of(
      bench({"--dummy", config_file(folder), "--precision", "bf16", "-b", "1", "-o", "json"}));
  EXPECT_EQ(most.at("depth"), 20);
}

TEST(Bench, PromptsThatNobodyNamedAreLeftOutWhereTheyDoNotFit) {
  const TempFolder folder;
  const auto measured = [&](const char* prompts) {
    return fut({"bench", "--device", "cpu", "--dummy", config_file(folder), "--precision", "bf16",
                "--layers", "1", "--prompts", prompts, "-o", "json"});
  };
  const ProcessResult all = measured("all");
  ASSERT_EQ(all.exit_code, 0) << all.err;
  EXPECT_EQ(lines_of(all.err).size(), 1U) << all.err;
  expect_mentions(all.err, {"512 positions", "512, 2048, 8192, 32768, 4x2048, 8x2048",
                            "14 of the 17 prompts of mixed"});
  const auto rows = json_of(all).at("prompts");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows.at(0).at("prompts"), "128");
  for (const std::size_t i : {1U, 2U}) EXPECT_EQ(rows.at(i).at("sequences"), 3);
  EXPECT_EQ(rows.at(1).at("tokens"), 30 + 215 + 401);
  EXPECT_EQ(rows.at(2).at("tokens"), 3 * 215);
  EXPECT_EQ(json_of(measured("equal")).at("prompts").at(0).at("sequences"), 3);
  expect_failure(fut({"bench", "--device", "cpu", "--dummy", config_file(folder), "--precision",
                      "bf16", "--prompts", "128,512"}),
                 2, {"--prompts 512", "512 positions"});
}

TEST(Bench, TakesAModelAndShowsItsOps) {
  const TempFolder folder;
  const std::string model =
      write_toy_model(folder.path() / "toy", small_quantizable_model()).string();
  const ProcessResult result = bench(
      {"-m", model, "--precision", "bf16", "-v", "-o", "json", "--temp", "0.7", "--top-k", "5"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto r = json_of(result);
  std::vector<std::string> names;
  std::int64_t bytes = 0;
  for (const auto& op : r.at("ops")) {
    names.push_back(op.at("name"));
    bytes += op.at("bytes").get<std::int64_t>();
    EXPECT_GT(op.at("us").get<double>(), 0) << names.back();
  }
  EXPECT_EQ(names, (std::vector<std::string>{"qkv_rope_append", "attention", "o_proj",
                                             "gate_up_swiglu", "down_proj", "lm_head", "sample"}));
  EXPECT_EQ(bytes, r.at("step").at("bytes").get<std::int64_t>());
}

TEST(Bench, ShowsTheMachineAndDrawsStepsWithTheRoofline) {
  const TempFolder folder;
  const std::string picture = (folder.path() / "steps.svg").string();
  const ProcessResult result = bench({"--dummy", config_file(folder), "--precision", "bf16",
                                      "--energy", "--plot", picture, "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto r = json_of(result);
  EXPECT_TRUE(r.at("machine").contains("throttled"));
  EXPECT_TRUE(r.contains("energy"));
  EXPECT_FALSE(r.contains("ops"));
  expect_mentions(read_file(picture), {"decode step, depth 20", "roofline",
                                       "o_proj: ", "lm_head: ", "% of the roof", "</svg>\n"});
}

TEST(Bench, OperationsAreThoseOfTheShape) {
  const TempFolder folder;
  const auto r = json_of(bench(
      {"--dummy", config_file(folder), "--precision", "bf16", "-b", "3", "-v", "-o", "json"}));
  std::map<std::string, double> flops;
  for (const auto& op : r.at("ops")) flops[op.at("name")] = op.at("flops");
  // Two layers of width 128 and 256 with two heads of 64 dims and one of keys, for 3 sequences.
  const double products = 2.0 * 2 * 3;
  EXPECT_EQ(flops.at("qkv_rope_append"), products * 128 * 4 * 64);
  EXPECT_EQ(flops.at("o_proj"), products * 128 * 128);
  EXPECT_EQ(flops.at("gate_up_swiglu"), products * 128 * 512);
  EXPECT_EQ(flops.at("down_proj"), products * 128 * 256);
  EXPECT_EQ(flops.at("lm_head"), 2.0 * 3 * 128 * 300);
  EXPECT_EQ(flops.at("attention"), 2.0 * 3 * 4 * 2 * 64 * 21);
}

TEST(Bench, ServesWhatLinesAskFor) {
  const TempFolder folder;
  const ProcessResult result =
      fut({"bench", "--device", "cpu", "-d", "20", "--dummy", config_file(folder), "--precision",
           "bf16", "-b", "2", "--serve", "-o", "jsonl"},
          with_input("step 20\nlayers 5\nroof\nstep 1\n"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<nlohmann::json> lines;
  for (const std::string& line : lines_of(result.out)) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 5U) << result.out;
  EXPECT_EQ(lines[0].at("batch"), 2);
  EXPECT_EQ(lines[0].at("layers"), 2);
  for (const int i : {1, 2, 4}) {
    const auto& answer = lines[static_cast<std::size_t>(i)];
    EXPECT_EQ(answer.at("what"), i == 2 ? "layers" : "step");
    EXPECT_GT(answer.at("us_least").get<double>(), 0);
    EXPECT_LE(answer.at("us_least"), answer.at("us"));
    EXPECT_LE(answer.at("us"), answer.at("us_most"));
    const double asked_us = i == 1 ? 20000 : i == 2 ? 5000 : 1000;
    EXPECT_GE(answer.at("us_most").get<double>() * answer.at("runs").get<double>(), asked_us);
  }
  EXPECT_DOUBLE_EQ(lines[2].at("us_layer").get<double>() * 2, lines[2].at("us").get<double>());
  EXPECT_GT(lines[3].at("read_roof_bytes_per_second").get<double>(), 1e8);
}

TEST(Bench, MeasuresPromptsToTheirFirstTokensAndByTheLayer) {
  const TempFolder folder;
  for (const char* prefill : {"fp8", "int4"}) {
    const ProcessResult result =
        fut({"bench", "--device", "cpu", "--dummy", config_file(folder), "--precision", "int4",
             "--prefill-weights", prefill, "--prompts",
             prefill == std::string("fp8") ? "7,3x40,100" : "7", "--layers", "1", "-o", "json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto r = json_of(result);
    EXPECT_EQ(r.at("prefill_weights"), prefill);
    const std::size_t count = r.at("prompts").size();
    ASSERT_EQ(count, prefill == std::string("fp8") ? 3U : 1U);
    const struct {
      const char* name;
      int sequences, tokens;
    } packs[] = {{"7", 1, 7}, {"3x40", 3, 120}, {"100", 1, 100}};
    for (std::size_t i = 0; i < count; ++i) {
      const auto& row = r.at("prompts").at(i);
      EXPECT_EQ(row.at("prompts"), packs[i].name);
      EXPECT_EQ(row.at("sequences"), packs[i].sequences);
      EXPECT_EQ(row.at("tokens"), packs[i].tokens);
      EXPECT_GT(row.at("first_token_ms").get<double>(), 0);
      EXPECT_DOUBLE_EQ(row.at("tokens_per_second").get<double>(),
                       1e3 * packs[i].tokens / row.at("first_token_ms").get<double>());
      // q, k, v, o, gate, up, down of 128 and 256; two heads of 64 dims.
      const double weights = 128 * (2 + 2) * 64 + 128 * 128 + 3 * 128 * 256;
      const int length = packs[i].tokens / packs[i].sequences;
      const double pairs = packs[i].sequences * length * (length + 1) / 2.0;
      EXPECT_DOUBLE_EQ(row.at("flops_layer").get<double>(),
                       2 * packs[i].tokens * weights + 4 * pairs * 2 * 64);
      EXPECT_DOUBLE_EQ(
          row.at("flops_per_second").get<double>(),
          row.at("flops_layer").get<double>() / row.at("us_layer").get<double>() * 1e6);
    }
  }
  const ProcessResult text = fut({"bench", "--device", "cpu", "--dummy", config_file(folder),
                                  "--precision", "bf16", "--prompts", "16"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  expect_mentions(text.out, {"first token ms", "TFLOP/s", "\n      16      16"});
}

TEST(Bench, ServesAPackOfPrompts) {
  const TempFolder folder;
  const ProcessResult result =
      fut({"bench", "--device", "cpu", "--dummy", config_file(folder), "--precision", "fp8",
           "--prompts", "2x30", "--serve", "-o", "jsonl"},
          with_input("layers 2\nstep 2\n"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<std::string> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 3U) << result.out;
  const auto layers = nlohmann::json::parse(lines[1]);
  EXPECT_GT(layers.at("us_layer").get<double>(), 0);
  EXPECT_GT(layers.at("flops_layer").get<double>(), 0);
  EXPECT_EQ(nlohmann::json::parse(lines[2]).at("what"), "step");
}

TEST(Bench, RandomWeightsAnswerWholeRequests) {
  const TempFolder folder;
  for (const char* prefill : {"fp8", "int4"}) {
    const ProcessResult result =
        fut({"bench", "--device", "cpu", "--dummy", config_file(folder), "--precision", "int4",
             "--prefill-weights", prefill, "--end-to-end", "-p", "8", "-n", "3", "-r", "2", "-o",
             "json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto r = json_of(result);
    EXPECT_EQ(r.at("latency").at(0).at("itl_ms").at("count"), 4);
    EXPECT_EQ(r.at("prefill_weights"), prefill);
  }
}

TEST(Bench, RefusesLinesThatAskForNothing) {
  const TempFolder folder;
  for (const char* line : {"step", "step 0", "step ten", "stop 10", "layers 5 5"}) {
    const ProcessResult result =
        fut({"bench", "--device", "cpu", "-d", "20", "--dummy", config_file(folder), "--precision",
             "bf16", "--serve", "-o", "jsonl"},
            with_input(std::string(line) + "\nstep 1\n"));
    EXPECT_EQ(result.exit_code, 2) << line << result.err;
    expect_mentions(result.err, {"standard input"});
    EXPECT_EQ(lines_of(result.out).size(), 2U) << result.out;  // ready, and why it ended
  }
}

TEST(Bench, TheTextGoesToStandardOutputAlone) {
  const TempFolder folder;
  const ProcessResult result = bench({"--dummy", config_file(folder), "--precision", "bf16"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("step "), std::string::npos);
  EXPECT_NE(result.out.find("% of "), std::string::npos);
  EXPECT_EQ(result.err, "");
}

TEST(Bench, RefusesWhatCannotBeMeasured) {
  const TempFolder folder;
  const std::string config = config_file(folder);
  const struct {
    std::vector<std::string> words;
    int exit_code;
    const char* part;
  } cases[] = {
      {{"--dummy", config, "--precision", "f32", "-d", "3"}, 2, "random weights"},
      {{"--dummy", config, "--precision", "bf16", "-d", "512"}, 2, "512 positions"},
      {{"--dummy", "/none.json", "--precision", "bf16"}, 3, "/none.json: there is no such file"},
      {{"--dummy", config, "-r", "0"}, 2, "-r"},
      {{"--dummy", config, "-m", "model"}, 2, "--dummy and -m exclude"},
      {{"--dummy", config, "--precision", "bf16", "-d", "8,1k"}, 2, "the largest depth is 511"},
      {{"--dummy", config, "--precision", "bf16", "--serve"}, 2, "-o jsonl"},
      {{"--dummy", config, "--serve", "-r", "5"}, 2, "--serve and -r"},
      {{"--dummy", config, "--prompts", "4x"}, 2, "4x"},
      {{"--dummy", config, "--prompts", "12,,12"}, 2, "12,,12"},
      {{"--dummy", config, "--prompts", "-1"}, 2, "--prompts"},
      {{"--dummy", config, "--precision", "bf16", "--prompts", "512"}, 2, "512 positions"},
      {{"--dummy", config, "--prompts", "5", "-d", "3"}, 2, "--prompts and -d"},
      {{"--dummy", config, "--prompts", "5,6", "--serve"}, 2, "--serve"},
      {{"--layers", "3"}, 2, "--layers goes with --dummy"}};
  for (const auto& c : cases) {
    std::vector<std::string> words = {"bench", "--device", "cpu"};
    words.insert(words.end(), c.words.begin(), c.words.end());
    const ProcessResult result = fut(words);
    EXPECT_EQ(result.exit_code, c.exit_code) << result.err;
    EXPECT_NE(result.err.find(c.part), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  }
  const ProcessResult two =
      fut({"bench", "--device", "cpu", "--dummy", config, "--serve", "-o", "jsonl", "-b", "1,8"});
  EXPECT_EQ(two.exit_code, 2);
  expect_mentions(two.err, {"one number with -b"});
}

}  // namespace
}  // namespace fut::test
