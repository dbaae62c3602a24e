// `fut inspect`: what a folder holds, from its small files and headers alone.
#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

namespace fs = std::filesystem;

TEST(Inspect, TellsShapesFormatsAndTokenizer) {
  const TempFolder folder;
  ToyModelOptions options;
  options.files.num_shards = 2;
  const fs::path model = write_toy_model(folder / "m", options);
  const auto report = json_of(fut({"inspect", "-m", model.string(), "-o", "json"}));
  const auto& config = report.at("config");
  EXPECT_EQ(config.at("hidden_size"), 64);
  EXPECT_EQ(config.at("num_layers"), 2);
  EXPECT_EQ(config.at("num_kv_heads"), 2);
  EXPECT_EQ(config.at("head_dim"), 16);
  EXPECT_EQ(config.at("rope").at("scaling"), "none");
  const auto& weights = report.at("weights");
  std::int64_t parameters = 0;
  std::size_t count = 0;
  for (const NamedTensor& tensor : toy_tensors(options)) {
    parameters += static_cast<std::int64_t>(tensor.bytes.size()) / 2;
    ++count;
  }
  EXPECT_EQ(weights.at("parameters"), parameters);
  EXPECT_EQ(weights.at("bytes"), 2 * parameters);
  EXPECT_EQ(weights.at("formats").at("BF16").at("tensors"), count);
  EXPECT_EQ(weights.at("files").size(), 2U);
  EXPECT_EQ(weights.at("head"), "lm_head.weight");
  EXPECT_EQ(report.at("tokenizer").at("adds_bos"), true);
  EXPECT_EQ(report.at("tokenizer").at("ends_a_reply").size(), 3U);
  EXPECT_EQ(report.at("chat_template"), "demo");
}

TEST(Inspect, TextHoldsTheSameFacts) {
  const TempFolder folder;
  const ProcessResult result = fut({"inspect", "-m", write_toy_model(folder / "m").string()});
  EXPECT_EQ(result.exit_code, 0);
  expect_mentions(result.out,
                  {"hidden_size: 64", "BF16", "<|eot_id|>", "chat_template: demo", "byte-level BPE",
                   "model.safetensors, tensors ", "rms_norm_eps: 1e-05"});
  EXPECT_EQ(result.out.find('{'), std::string::npos) << result.out;
}

TEST(Inspect, ATiedHeadIsSaidAndCountedOnce) {
  const TempFolder folder;
  ToyModelOptions options;
  options.files.tie_word_embeddings = true;
  options.files.write_head = false;
  const fs::path model = write_toy_model(folder / "m", options);
  const auto weights = json_of(fut({"inspect", "-m", model.string(), "-o", "json"})).at("weights");
  EXPECT_EQ(weights.at("head"), "tied to the embedding");
  std::int64_t parameters = 0;
  for (const NamedTensor& tensor : toy_tensors(options)) {
    parameters += static_cast<std::int64_t>(tensor.bytes.size()) / 2;
  }
  EXPECT_EQ(weights.at("parameters"), parameters);
}

TEST(Inspect, RepeatsWhatALoadWouldSay) {
  const TempFolder folder;
  ToyModelOptions options;
  options.files.config_patch = {{"rope_theta", nullptr}};
  const fs::path model = write_toy_model(folder / "m", options);
  const auto report = json_of(fut({"inspect", "-m", model.string(), "-o", "json"}));
  expect_mentions(report.at("notices").dump(), {"rope_theta"});
}

TEST(Inspect, BrokenFoldersFailAsInRun) {
  const TempFolder folder;
  const fs::path model = write_toy_model(folder / "m");
  fs::resize_file(model / "model.safetensors", fs::file_size(model / "model.safetensors") - 1);
  expect_failure(fut({"inspect", "-m", model.string()}), 3, {"model.safetensors"});
  write_file(model / "tokenizer.json", "{");
  expect_failure(fut({"inspect", "-m", model.string()}), 3, {"tokenizer.json"});
}

TEST(Inspect, AFolderWithoutWeightsOrTokenizerIsDescribedAsFarAsItGoes) {
  const TempFolder folder;
  const fs::path model = write_toy_model(folder / "m");
  fs::remove(model / "model.safetensors");
  fs::remove(model / "tokenizer.json");
  const auto report = json_of(fut({"inspect", "-m", model.string(), "-o", "json"}));
  EXPECT_EQ(report.at("config").at("hidden_size"), 64);
  EXPECT_TRUE(report.at("weights").is_null());
  EXPECT_EQ(report.at("tokenizer").at("ends_a_reply").size(), 3U);
  expect_mentions(report.at("notices").dump(), {"safetensors", "tokenizer.json"});
}

TEST(Inspect, APictureShowsTheErrorOfEveryMatrix) {
  const TempFolder folder;
  const std::string packed = (folder.path() / "packed").string();
  const std::string picture = (folder.path() / "errors.svg").string();
  const std::string demo = source_path("configs/demo-6m").string();
  ASSERT_EQ(fut({"quantize", "-m", demo, "-o", packed}).exit_code, 0);
  ASSERT_EQ(fut({"inspect", "-m", packed, "--plot", picture}).exit_code, 0);
  const std::string svg = read_file(picture);
  EXPECT_TRUE(svg.starts_with("<svg"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  expect_mentions(svg, {"layers.0.qkv_proj", "relative error", "prefers-color-scheme:dark"});
  expect_failure(fut({"inspect", "-m", demo, "--plot", picture}), 2, {"--plot", "quantize"});
  const std::string config = read_file(packed + "/config.json");
  expect_failure(fut({"inspect", "-m", packed, "--plot", packed + "/config.json"}), 2,
                 {"--plot", "is the input"});
  EXPECT_EQ(read_file(packed + "/config.json"), config);
}

}  // namespace
}  // namespace fut::test
