// config.json as users hold it, seen through `fut run`: spellings of rope scaling and what is
// refused by name.
#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

// Log probabilities of the first three tokens for a folder with these changes.
nlohmann::json logits_with(const nlohmann::json& patch) {
  const TempFolder folder;
  ToyModelOptions options;
  options.files.config_patch = patch;
  const auto model = write_toy_model(folder / "m", options);
  const ProcessResult result = fut({"run", "-m", model.string(), "--raw", "-p",
                                    "The quick brown fox jumps over the lazy dog", "-n", "3",
                                    "--ignore-eos", "-o", "json", "--logprobs", "5"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json_of(result).at("logprobs");
}

ProcessResult run_with(const nlohmann::json& patch) {
  const TempFolder folder;
  ToyModelOptions options;
  options.files.config_patch = patch;
  const auto model = write_toy_model(folder / "m", options);
  return fut({"run", "-m", model.string(), "--raw", "-p", "x", "-n", "1"});
}

nlohmann::json llama3_scaling(const char* key) {
  return {{key, "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 64}};
}

TEST(RopeScalingOfModels, EverySpellingMeansTheSame) {
  const auto expected = logits_with({{"rope_scaling", llama3_scaling("rope_type")}});
  EXPECT_EQ(logits_with({{"rope_scaling", llama3_scaling("type")}}), expected);
  nlohmann::json both = llama3_scaling("type");
  both["rope_type"] = "llama3";
  EXPECT_EQ(logits_with({{"rope_scaling", both}}), expected);
  nlohmann::json nested = llama3_scaling("rope_type");
  nested["rope_theta"] = 500000.0;
  EXPECT_EQ(logits_with(
                {{"rope_scaling", nullptr}, {"rope_theta", nullptr}, {"rope_parameters", nested}}),
            expected);
  EXPECT_NE(logits_with(nlohmann::json::object()), expected);
}

TEST(RopeScalingOfModels, NullIsNone) {
  // A merge patch of null removes the key; the toy's own value is null.
  const TempFolder folder;
  const auto model = write_toy_model(folder / "m");
  set_json_key(model / "config.json", "rope_scaling", nullptr);
  const ProcessResult result = fut({"run", "-m", model.string(), "--raw", "-p",
                                    "The quick brown fox jumps over the lazy dog", "-n", "3",
                                    "--ignore-eos", "-o", "json", "--logprobs", "5"});
  EXPECT_EQ(json_of(result).at("logprobs"), logits_with({{"rope_scaling", nullptr}}));
}

TEST(RopeScalingOfModels, LinearIsNotIgnored) {
  EXPECT_NE(logits_with({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 4.0}}}}),
            logits_with(nlohmann::json::object()));
}

TEST(RopeScalingOfModels, ThetaMayBeWrittenInAnyWay) {
  const auto expected = logits_with(nlohmann::json::object());
  EXPECT_EQ(logits_with({{"rope_theta", 500000}}), expected);
  EXPECT_EQ(logits_with({{"rope_theta", 5e5}}), expected);
}

TEST(RopeScalingOfModels, AMissingThetaIsTheDocumentedDefaultAndSaid) {
  const ProcessResult result = run_with({{"rope_theta", nullptr}});
  EXPECT_EQ(result.exit_code, 0);
  expect_mentions(result.err, {"rope_theta", "10000"});
}

TEST(RopeScalingOfModels, UnknownContradictoryAndIncompleteOnesAreRefused) {
  expect_failure(run_with({{"rope_scaling", {{"rope_type", "foo"}, {"factor", 2.0}}}}), 3,
                 {"rope_type", "foo"});
  nlohmann::json different = llama3_scaling("rope_type");
  different["type"] = "linear";
  expect_failure(run_with({{"rope_scaling", different}}), 3, {"type", "linear"});
  nlohmann::json incomplete = llama3_scaling("rope_type");
  incomplete.erase("factor");
  expect_failure(run_with({{"rope_scaling", incomplete}}), 3, {"factor"});
}

TEST(ModelConfigOfModels, OtherArchitecturesAreRefusedByName) {
  expect_failure(run_with({{"architectures", {"MistralForCausalLM"}}, {"model_type", "mistral"}}),
                 3, {"mistral"});
}

TEST(ModelConfigOfModels, BrokenJsonIsNamedWithItsPlace) {
  const TempFolder folder;
  const auto model = write_toy_model(folder / "m");
  write_file(model / "config.json", "{\"architectures\": [");
  expect_failure(fut({"run", "-m", model.string(), "-p", "x"}), 3, {"config.json"});
}

}  // namespace
}  // namespace fut::test
