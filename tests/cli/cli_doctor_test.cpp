// fut doctor, on machines with and without a driver: a stand-in for the management library says what the
// test wants. GPUs that are really here are hidden.
#include "tests/cli/quantized_case.h"

namespace fut::test {
namespace {

class Doctor : public ::testing::Test {
 protected:
  // A cache folder of the test's own, no GPU, and the stand-in where `nvml` says how it should fail
  // ("": not at all).
  [[nodiscard]] ProcessOptions environment(const char* nvml = nullptr) const {
    std::map<std::string, std::optional<std::string>> variables = {
        {"CUDA_VISIBLE_DEVICES", ""},
        {"FUT_DEVICE", std::nullopt},
        {"FUT_PRECISION", std::nullopt},
        {"XDG_CACHE_HOME", (folder_ / "xdg").string()}};
    if (nvml != nullptr) {
      variables["LD_LIBRARY_PATH"] = FUT_FAKE_NVML;
      variables["FAKE_NVML"] = nvml;
    }
    return with_variables(variables);
  }
  [[nodiscard]] ProcessResult doctor(std::vector<std::string> more = {},
                                     const char* nvml = nullptr) const {
    more.insert(more.begin(), "doctor");
    return fut(more, environment(nvml));
  }
  // Runs a model whose copy is kept; the copy.
  [[nodiscard]] std::filesystem::path make_copy() const {
    const std::string model = write_toy_model(folder_ / "toy", small_quantizable_model()).string();
    const ProcessResult run =
        fut({"run", "-m", model, "--raw", "-p", "x", "-n", "1", "--cpu"}, environment());
    EXPECT_EQ(run.exit_code, 0) << run.err;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "xdg" / "fut")) {
      return entry.path();
    }
    ADD_FAILURE() << "no copy was kept";
    return {};
  }

  TempFolder folder_;
};

TEST_F(Doctor, SaysWhatIsHereAndThatTheCpuIsTaken) {
  const ProcessResult result = doctor();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  expect_mentions(result.out, {"program", "fut 0.", "cpu", "kernels", "driver",
                               "runs on   the CPU: ", "cache", "temporary", "models"});
  const ProcessResult asked = doctor({"--device", "cpu", "-o", "json"});
  EXPECT_EQ(asked.exit_code, 0);
  const auto document = json_of(asked);
  EXPECT_EQ(document.at("runs_on"), "the CPU, as asked for");
  EXPECT_TRUE(document.at("devices").is_array());
  EXPECT_TRUE(document.at("cache").at("writable"));
  EXPECT_FALSE(document.at("cache").at("exists"));
  EXPECT_GT(document.at("cache").at("free").get<double>(), 0);
  EXPECT_TRUE(document.at("cache").at("copies").empty());
}

TEST_F(Doctor, AGpuThatWasAskedForAndIsNotThereIsExitCode5) {
  for (const char* device : {"cuda", "cuda:9"}) {
    const ProcessResult result = doctor({"--device", device});
    EXPECT_EQ(result.exit_code, 5);
    EXPECT_LT(result.seconds, 10);
    expect_mentions(result.out, {"runs on   nothing", "1. cuda:", "next: "});
  }
  const auto document = json_of(doctor({"--device", "cuda", "-o", "json"}));
  ASSERT_GE(document.at("problems").size(), 1U);
  EXPECT_NE(document.at("problems")[0].at("next"), "");
}

TEST_F(Doctor, TellsOfGpusAndWhoUsesThem) {
  const ProcessResult result = doctor({"-o", "json"}, "");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto document = json_of(result);
  EXPECT_EQ(document.at("driver").at("version"), "580.159.04");
  EXPECT_EQ(document.at("driver").at("cuda"), "13.0");
  std::map<std::string, nlohmann::json> devices;
  for (const auto& device : document.at("devices")) devices[device.at("name")] = device;
  const auto& h100 = devices.at("NVIDIA H100 80GB HBM3");
  EXPECT_EQ(h100.at("uuid"), "GPU-11111111-2222-3333-4444-555555555555");
  EXPECT_EQ(h100.at("compute_capability"), "9.0");
  EXPECT_EQ(h100.at("usable"), false);  // the runtime does not show it
  EXPECT_EQ(h100.at("memory").get<std::int64_t>(), std::int64_t{80} << 30);
  EXPECT_EQ(h100.at("free").get<std::int64_t>(), std::int64_t{30} << 30);
  ASSERT_EQ(h100.at("processes").size(), 2U);
  EXPECT_EQ(h100.at("processes")[0].at("pid"), 1);
  EXPECT_NE(h100.at("processes")[0].at("name"), "");
  EXPECT_EQ(h100.at("processes")[0].at("bytes").get<std::int64_t>(), std::int64_t{40} << 30);
  EXPECT_EQ(h100.at("processes")[1].at("bytes"), 0);
  EXPECT_TRUE(devices.at("NVIDIA GeForce RTX 3090").at("processes").empty());
  // There are GPUs, and none is used: somebody has to do something.
  ASSERT_GE(document.at("problems").size(), 1U);
  const ProcessResult text = doctor({}, "");
  expect_mentions(text.out,
                  {"NVIDIA H100 80GB HBM3, compute capability 9.0, 80.0 GiB, 30.0 GiB free",
                   "process 1 (", "uses 40.0 GiB", "no GPU is used", "next: "});
}

TEST_F(Doctor, SaysWhyTheDriverDoesNotAnswer) {
  expect_mentions(doctor({}, "not loaded").out, {"installed and not loaded"});
  expect_mentions(doctor({}, "mismatch").out, {"was updated"});
  expect_mentions(doctor({}, "strange").out, {"code 999"});
  expect_mentions(doctor({}, "old").out, {"470.57.02", "11.4"});
  for (const char* fault : {"not loaded", "mismatch", "strange"}) {
    EXPECT_EQ(doctor({}, fault).exit_code, 0);
    EXPECT_EQ(doctor({"--device", "cuda"}, fault).exit_code, 5);
  }
}

TEST_F(Doctor, ChecksTheCopiesThatAreKept) {
  const std::filesystem::path copy = make_copy();
  const auto whole = json_of(doctor({"-o", "json"}));
  const auto& copies = whole.at("cache").at("copies");
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(copies[0].at("name"), copy.filename().string());
  EXPECT_EQ(copies[0].at("checksums"), "all met");
  EXPECT_EQ(copies[0].at("source_exists"), true);
  EXPECT_GT(copies[0].at("bytes").get<std::int64_t>(), 0);

  std::string bytes = read_file(copy / "model.safetensors");
  bytes[bytes.size() / 2] ^= 1;
  write_file(copy / "model.safetensors", bytes);
  const ProcessResult damaged = doctor();
  EXPECT_EQ(damaged.exit_code, 3);
  expect_mentions(damaged.out, {"damaged", copy.string(), "next: rm -r "});
  EXPECT_EQ(doctor({"--quick"}).exit_code, 0);
  for (const std::uintmax_t size : {8, 0}) {
    std::filesystem::resize_file(copy / "model.safetensors", size);
    const ProcessResult cut = doctor();
    EXPECT_EQ(cut.exit_code, 3);
    expect_mentions(cut.out, {"damaged", copy.string(), "next: rm -r "});
  }
  write_file(copy / "model.safetensors", bytes);
  std::filesystem::remove_all(folder_ / "toy");
  expect_mentions(doctor({"--quick"}).out, {"which is gone", "not checked"});
  std::filesystem::create_directories(copy.parent_path() / "x.partial-1-2");
  expect_mentions(doctor({"--quick"}).out, {"x.partial-1-2"});
}

TEST_F(Doctor, FoldersThatCannotBeUsedAreProblems) {
  const ProcessResult file = doctor({"--cache-dir", "/dev/null/cache"});
  EXPECT_EQ(file.exit_code, 0);
  expect_mentions(file.out, {"/dev/null/cache: not there yet, not writable", "--cache-dir DIR"});
  ProcessOptions homeless = environment();
  homeless.environment["HOME"] = std::nullopt;
  homeless.environment["XDG_CACHE_HOME"] = std::nullopt;
  const ProcessResult result = fut({"doctor"}, homeless);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_mentions(result.out, {"cache     none", "set HOME"});
  expect_failure(fut({"doctor", "--device", "gpu"}, environment()), 2, {"--device", "cuda"});
}

}  // namespace
}  // namespace fut::test
