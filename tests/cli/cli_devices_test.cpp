// What works without a GPU or its driver, and what is said where one was asked for. On a machine
// with a usable GPU the tests of its absence hide it.
#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

class Devices : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    script = std::make_unique<Script>();
    script->say("x", {"Hi", "<|eot_id|>"});
    model = script->write();
  }
  static void TearDownTestSuite() { script.reset(); }
  static ProcessResult run_on(std::vector<std::string> device) {
    std::vector<std::string> words = {"run", "-m", model, "--raw", "-p", "x"};
    words.insert(words.end(), device.begin(), device.end());
    return fut(words, with_variables({{"CUDA_VISIBLE_DEVICES", ""}, {"FUT_DEVICE", std::nullopt}}));
  }
  static std::unique_ptr<Script> script;
  static std::string model;
};
std::unique_ptr<Script> Devices::script;
std::string Devices::model;

TEST_F(Devices, TheBinaryDoesNotNeedTheDriverLibrary) {
  const ProcessResult result = fut({}, with_variables({{"LD_TRACE_LOADED_OBJECTS", "1"}}));
  expect_mentions(result.out, {"libc.so"});
  EXPECT_EQ(result.out.find("libcuda"), std::string::npos) << result.out;
}

TEST_F(Devices, TheCpuIsChosenByNameOrWhereThereIsNothingElse) {
  expect_success(run_on({"--device", "cpu"}), "Hi");
  expect_success(run_on({"--cpu"}), "Hi");
  const ProcessResult automatic = run_on({"--device", "auto"});
  expect_success(automatic, "Hi");
  EXPECT_LE(lines_of(automatic.err).size(), 1U) << automatic.err;
  expect_failure(run_on({"--cpu", "--device", "cuda"}), 2, {"--cpu", "--device"});
}

TEST_F(Devices, AMissingGpuIsAnErrorBeforeWeightsAreOpened) {
  for (const char* device : {"cuda", "cuda:9"}) {
    const ProcessResult result = run_on({"--device", device});
    expect_failure(result, 5, {"--device cpu"});
    EXPECT_LT(result.seconds, 10);
  }
  // Not even a folder without weights is noticed first.
  const auto weights = std::filesystem::path(model) / "model.safetensors";
  std::filesystem::rename(weights, weights.string() + ".away");
  EXPECT_EQ(run_on({"--device", "cuda"}).exit_code, 5);
  EXPECT_EQ(run_on({"--device", "cpu"}).exit_code, 3);
  std::filesystem::rename(weights.string() + ".away", weights);
}

TEST_F(Devices, EverythingElseWorksWithoutOne) {
  const auto hidden = with_variables({{"CUDA_VISIBLE_DEVICES", ""}, {"FUT_DEVICE", std::nullopt}});
  EXPECT_EQ(fut({"--version"}, hidden).exit_code, 0);
  EXPECT_EQ(fut({"inspect", "-m", model}, hidden).exit_code, 0);
  EXPECT_EQ(fut({"tokenize", "-m", model, "-p", "x"}, hidden).exit_code, 0);
  const TempFolder folder;
  EXPECT_EQ(fut({"quantize", "-m", model, "-o", (folder / "q").string()}, hidden).exit_code, 0);
  EXPECT_EQ(fut({"plan", "-m", model, "--precision", "f32"}, hidden).exit_code, 0);
  EXPECT_EQ(fut({"plan", "-m", "llama-3.1-70b", "--gpu", "h200"},
                with_variables({{"CUDA_VISIBLE_DEVICES", ""},
                                {"FUT_DEVICE", std::nullopt},
                                {"FUT_PRECISION", std::nullopt}}))
                .exit_code,
            0);
  EXPECT_EQ(fut({"doctor", "--quick"}, hidden).exit_code, 0);
  const ProcessResult list = fut({"--list-devices"}, hidden);
  EXPECT_EQ(list.exit_code, 0);
  expect_mentions(list.out, {"cpu"});
}

TEST_F(Devices, ResultsDoNotDependOnTheNumberOfThreads) {
  TempFolder folder;
  const std::string random = write_toy_model(folder / "m").string();
  const auto logprobs = [&](const char* threads) {
    const ProcessResult result = fut({"run", "-m", random, "--raw", "-p", "Once upon a time", "-n",
                                      "8", "-o", "json", "--logprobs", "5", "-t", threads});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json_of(result).at("logprobs");
  };
  const auto one = logprobs("1");
  EXPECT_EQ(logprobs("2"), one);
  EXPECT_EQ(logprobs("5"), one);
}

}  // namespace
}  // namespace fut::test
