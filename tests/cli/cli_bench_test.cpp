// fut bench: what it reports, in which form, and what it refuses.
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
  } cases[] = {{{"--dummy", config, "--precision", "f32"}, 2, "random weights"},
               {{"--dummy", config, "--precision", "bf16", "-d", "512"}, 2, "512 positions"},
               {{"--dummy", "/none.json", "--precision", "bf16"}, 3, "/none.json"},
               {{"--dummy", config, "-r", "0"}, 2, "-r"}};
  for (const auto& c : cases) {
    std::vector<std::string> words = {"bench", "--device", "cpu"};
    words.insert(words.end(), c.words.begin(), c.words.end());
    const ProcessResult result = fut(words);
    EXPECT_EQ(result.exit_code, c.exit_code) << result.err;
    EXPECT_NE(result.err.find(c.part), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

}  // namespace
}  // namespace fut::test
