// Damaged, incomplete and misleading weight files, as a user meets them: what `fut run` says and
// how fast.
#include <csignal>
#include <fstream>
#include <thread>

#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

namespace fs = std::filesystem;

// A header's length as the format spells it, then `rest`.
std::string with_length(std::uint64_t length, std::string rest) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xFFU);
  return bytes + std::move(rest);
}

ProcessResult run_model(const fs::path& model) {
  return fut({"run", "-m", model.string(), "--raw", "-p", "x", "-n", "1"});
}

class WeightFiles : public ::testing::Test {
 protected:
  fs::path write(int num_shards = 0) {
    ToyModelOptions options;
    options.files.num_shards = num_shards;
    tensors = toy_tensors(options);
    return write_toy_model(folder / "model", options);
  }
  TempFolder folder;
  std::vector<NamedTensor> tensors;
};

TEST_F(WeightFiles, HeadersThatMakeNoSenseAreRefusedAtOnce) {
  struct Case {
    const char* name;
    std::string bytes;
    std::vector<std::string> facts;
  };
  const std::string page = "<!DOCTYPE html><html><body>Not found</body></html>";
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 11547040\n";
  const std::vector<Case> cases = {
      {"empty", "", {"0"}},
      {"7 bytes", std::string(7, '\0'), {"7"}},
      {"8 zero bytes", std::string(8, '\0'), {"8"}},
      {"length 2^63", with_length(std::uint64_t{1} << 63, "{}"), {"9223372036854775808", "10"}},
      {"length over the limit", with_length(100'000'001, std::string(1016, ' ')), {"100000001"}},
      {"length one over the file", with_length(1024 - 7, std::string(1016, ' ')), {"1017", "1024"}},
      {"pointer", pointer, {"LFS"}},
      {"web page", page, {"web page"}},
      {"list", with_length(4, "[1] "), {}},
      {"metadata", with_length(25, R"({"__metadata__":{"a": 1}} )"), {"__metadata__"}},
  };
  const fs::path model = write();
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    write_file(model / "model.safetensors", c.bytes);
    const ProcessResult result = run_model(model);
    expect_failure(result, 3, {"model.safetensors"});
    for (const std::string& fact : c.facts) {
      EXPECT_NE(result.err.find(fact), std::string::npos) << fact << " not in " << result.err;
    }
    EXPECT_LT(result.seconds, 10);
#ifndef FUT_SANITIZED
    EXPECT_LT(result.max_memory_kib, 50'000);
#endif
  }
}

TEST_F(WeightFiles, AnEmptyTableLacksItsTensors) {
  const fs::path model = write();
  write_file(model / "model.safetensors", with_length(2, "{}"));
  expect_failure(run_model(model), 3, {"missing", "model.layers.0.input_layernorm.weight"});
}

TEST_F(WeightFiles, CutFilesAreRefusedBeforeATensorIsUsed) {
  const fs::path model = write(2);
  const fs::path second = model / shard_name(1, 2);
  const std::string whole = read_file(second);
  std::uint64_t header = 0;
  for (int i = 7; i >= 0; --i) header = header << 8 | static_cast<unsigned char>(whole[i]);
  for (const std::size_t size : {whole.size() - 1, whole.size() / 2, std::size_t{header} + 8}) {
    write_file(second, whole.substr(0, size));
    expect_failure(run_model(model), 3, {second.filename().string(), std::to_string(size)});
  }
  write_file(second, whole);
  const fs::path first = model / shard_name(0, 2);
  write_file(first, read_file(first) + std::string(16, 'j'));
  expect_failure(run_model(model), 3, {first.filename().string()});
}

// Resident memory of a process in pages; 0 when it is gone.
long resident_pages(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  long total = 0;
  long resident = 0;
  file >> total >> resident;
  return resident;
}

TEST_F(WeightFiles, AFileThatShrinksWhileItIsReadIsAnErrorAndNoCrash) {
  // Mostly holes, so that it costs no disk: one layer whose three large matrices are all zero.
  ToyModelOptions options;
  options.num_layers = 1;
  const fs::path model = write_toy_model(folder / "model", options);
  constexpr std::int64_t kIntermediate = 1 << 20;
  set_json_key(model / "config.json", "intermediate_size", kIntermediate);
  nlohmann::ordered_json header;
  std::uint64_t offset = 0;
  for (const NamedTensor& tensor : toy_tensors(options)) {
    std::vector<std::int64_t> shape = tensor.shape;
    for (std::int64_t& size : shape) {
      if (size == options.intermediate_size) size = kIntermediate;
    }
    std::uint64_t bytes = 2;
    for (const std::int64_t size : shape) bytes *= static_cast<std::uint64_t>(size);
    header[tensor.name] = {
        {"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  const fs::path file = model / "model.safetensors";
  const std::string text = header.dump();
  write_file(file, with_length(text.size(), text));
  fs::resize_file(file, 8 + text.size() + offset);

  ProcessOptions process_options;
  process_options.arguments = {"run", "-m", model.string(), "--raw", "-p", "x", "-n", "1"};
  Process process(FUT_BINARY, on_cpu_in_f32(process_options));
  // Stop it in the middle of reading: when a part of the 400 MB is in memory.
  constexpr long kPages = 30'000;
  const long before = resident_pages(process.pid());
  while (resident_pages(process.pid()) < before + kPages) {
    if (resident_pages(process.pid()) == 0) break;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  process.send_signal(SIGSTOP);
  fs::resize_file(file, fs::file_size(file) / 8);
  process.send_signal(SIGCONT);
  const ProcessResult result = process.finish();
  EXPECT_EQ(result.signal, 0);
  EXPECT_TRUE(result.exit_code == 1 || result.exit_code == 3) << result.exit_code << result.err;
  expect_mentions(result.err, {"model.safetensors"});
}

// ---- the index of several files ----------------------------------------------------------------

TEST_F(WeightFiles, MissingShardsAndTensorsAreListed) {
  const fs::path model = write(3);
  const fs::path second = model / shard_name(1, 3);
  const std::string whole = read_file(second);
  fs::remove(second);
  expect_failure(run_model(model), 3, {second.filename().string()});

  fs::create_symlink(model / "cleaned-up-blob", second);
  expect_failure(run_model(model), 3, {second.filename().string()});
  fs::remove(second);

  write_file(second, whole);
  write_file(model / "model.safetensors.index.json", "{}");
  expect_failure(run_model(model), 3, {"model.safetensors.index.json"});
}

TEST_F(WeightFiles, AShardThatLacksATensorIsNamed) {
  const fs::path model = write(3);
  nlohmann::json index = nlohmann::json::parse(read_file(model / "model.safetensors.index.json"));
  const std::string shard = index.at("weight_map").at("model.norm.weight");
  std::vector<NamedTensor> kept;
  for (const NamedTensor& tensor : tensors) {
    if (index.at("weight_map").at(tensor.name) == shard && tensor.name != "model.norm.weight") {
      kept.push_back(tensor);
    }
  }
  write_safetensors(model / shard, kept);
  expect_failure(run_model(model), 3, {"model.norm.weight", shard});
}

TEST_F(WeightFiles, AnIndexThatPointsElsewhereIsRefused) {
  const fs::path model = write(3);
  const fs::path index_file = model / "model.safetensors.index.json";
  const nlohmann::json good = nlohmann::json::parse(read_file(index_file));
  nlohmann::json index = good;
  index["weight_map"]["model.norm.weight"] = shard_name(0, 3);
  write_file(index_file, index.dump());
  expect_failure(run_model(model), 3, {"model.norm.weight"});
  for (const char* outside : {"../x.safetensors", "/etc/x.safetensors"}) {
    index = good;
    index["weight_map"]["model.norm.weight"] = outside;
    write_file(index_file, index.dump());
    expect_failure(run_model(model), 3, {outside});
  }
}

TEST_F(WeightFiles, HarmlessOdditiesLoad) {
  const fs::path model = write(3);
  fs::create_directory(model / "extra.safetensors");
  const fs::path index_file = model / "model.safetensors.index.json";
  nlohmann::json index = nlohmann::json::parse(read_file(index_file));
  index["metadata"]["total_size"] = 1;
  write_file(index_file, index.dump());
  EXPECT_EQ(run_model(model).exit_code, 0);
}

TEST_F(WeightFiles, AHeaderMayBePaddedWithBlanks) {
  const fs::path model = write();
  const std::string whole = read_file(model / "model.safetensors");
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(whole[i]);
  const std::string header = whole.substr(8, length) + std::string(16 - length % 8, ' ');
  write_file(model / "model.safetensors",
             with_length(header.size(), header + whole.substr(8 + length)));
  EXPECT_EQ(run_model(model).exit_code, 0);
}

TEST_F(WeightFiles, ATensorThatNobodyNeedsMayBeMissingFromTheIndex) {
  const fs::path model = write(3);
  const nlohmann::json index =
      nlohmann::json::parse(read_file(model / "model.safetensors.index.json"));
  const std::string shard = index.at("weight_map").at("model.norm.weight");
  std::vector<NamedTensor> kept;
  for (const NamedTensor& tensor : tensors) {
    if (index.at("weight_map").at(tensor.name) == shard) kept.push_back(tensor);
  }
  kept.push_back(kept.front());
  kept.back().name = "model.of.something.else";
  write_safetensors(model / shard, kept);
  EXPECT_EQ(run_model(model).exit_code, 0);
}

// ---- the output head ---------------------------------------------------------------------------

// The embedding is the unit matrix, so a tied model repeats the last token for ever while the head
// says "Hi": one token tells which was used.
ProcessResult run_head(std::optional<bool> tied, bool head) {
  Script script;
  script.say("x", {"Hi", "<|eot_id|>"});
  script.model.files.tie_word_embeddings = tied;
  script.model.files.write_head = head;
  return fut({"run", "-m", script.write(), "--raw", "-p", "x", "-n", "1"});
}

TEST(OutputHeadOfModels, FollowsFlagAndFiles) {
  expect_success(run_head(true, false), "x");
  expect_success(run_head(false, true), "Hi");
  expect_success(run_head(std::nullopt, true), "Hi");
  const ProcessResult both = run_head(true, true);
  expect_success(both, "x");
  expect_mentions(both.err, {"lm_head.weight"});
}

TEST(OutputHeadOfModels, AQuantisedOneLeavesTheEmbeddingAlone) {
  Script script;
  script.say("x", {"Hi", "<|eot_id|>"});
  script.model.files.tie_word_embeddings = true;
  script.model.files.write_head = false;
  const std::string model = script.write();
  for (const char* precision : {"int4", "fp8", "bf16"}) {
    expect_success(fut({"run", "-m", model, "--raw", "-p", "x", "-n", "3", "--precision", precision,
                        "--no-cache", "-q"}),
                   "xxx");
  }
}

TEST(OutputHeadOfModels, IsNeverGuessed) {
  expect_failure(run_head(false, false), 3, {"tie_word_embeddings", "lm_head.weight"});
  expect_failure(run_head(std::nullopt, false), 3, {"tie_word_embeddings", "lm_head.weight"});
}

}  // namespace
}  // namespace fut::test
