// Checkpoints that are quantised on the way: the copy in the cache folder, when it serves and when it
// is made anew, and runs without a place for one.
#include <chrono>
#include <csignal>

#include "tests/cli/quantized_case.h"

namespace fut::test {
namespace {

namespace fs = std::filesystem;

class Copies : public testing::Test {
 protected:
  static ToyModelOptions toy(std::uint64_t seed) {
    ToyModelOptions options = small_quantizable_model();
    options.seed = seed;
    return options;
  }

  ProcessResult run(std::vector<std::string> more = {}, ProcessOptions options = {}) {
    return run_model(source.string(), std::move(more), std::move(options));
  }
  ProcessResult run_model(const std::string& model, std::vector<std::string> more = {},
                          ProcessOptions options = {}) {
    std::vector<std::string> words = {"run", "-m", model, "--raw", "-p", "x", "-n", "4"};
    words.insert(words.end(), more.begin(), more.end());
    for (auto& [name, value] : in_default_precision(folder.path()).environment) {
      options.environment.try_emplace(name, value);
    }
    return fut(words, std::move(options));
  }
  // The entries of the cache folder.
  [[nodiscard]] std::vector<std::string> entries() const {
    return fs::exists(folder / "cache/fut") ? names_in(folder / "cache/fut")
                                            : std::vector<std::string>();
  }

  static void expect_made(const ProcessResult& result) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    expect_mentions(result.err, {"quantised in"});
  }
  static void expect_found(const ProcessResult& result) {
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
  }

  TempFolder folder;
  fs::path source = write_toy_model(folder / "toy", toy(1));
};

TEST_F(Copies, AreMadeOnceAndFoundByTheNextRun) {
  const ProcessResult first = run();
  expect_made(first);
  expect_mentions(first.err, {source.string(), "cache/fut/toy"});
  const ProcessResult second = run();
  expect_found(second);
  EXPECT_EQ(second.out, first.out);
  // The same copy serves FP8 and every path to the source.
  expect_found(run({"--precision", "fp8"}));
  expect_found(run_model((folder / "toy/../toy").string()));
  EXPECT_EQ(entries().size(), 1U);
}

TEST_F(Copies, AreTheFolderThatQuantizeMakes) {
  expect_made(run());
  ASSERT_EQ(fut({"quantize", "-m", source.string(), "-q"}).exit_code, 0);
  EXPECT_TRUE(files_of(folder / "toy-rtn-g128").at("model.safetensors") ==
              files_of(folder / "cache/fut" / entries().at(0)).at("model.safetensors"));
}

TEST_F(Copies, AChangedSourceIsNoticedAndNamed) {
  expect_made(run());
  write_toy_model(source, toy(2));  // the same sizes
  const ProcessResult changed = run();
  expect_made(changed);
  expect_mentions(changed.err, {"model.safetensors", "made anew"});
  expect_found(run());
  EXPECT_EQ(entries().size(), 1U);
}

TEST_F(Copies, ATouchedSourceIsComparedAndServes) {
  expect_made(run());
  fs::last_write_time(source / "model.safetensors",
                      fs::file_time_type::clock::now() + std::chrono::hours(1));
  expect_found(run());
  expect_found(run());
}

TEST_F(Copies, ChangesThatKeepTheTimeAreFoundByCheckTensors) {
  expect_made(run());
  const auto time = fs::last_write_time(source / "model.safetensors");
  std::string weights = read_file(source / "model.safetensors");
  weights[weights.size() - 10] = static_cast<char>(weights[weights.size() - 10] ^ 1);
  write_file(source / "model.safetensors", weights);
  fs::last_write_time(source / "model.safetensors", time);
  expect_found(run());
  const ProcessResult checked = run({"--check-tensors"});
  expect_made(checked);
  expect_mentions(checked.err, {"model.safetensors"});
}

TEST_F(Copies, ADamagedOneIsMadeAnew) {
  expect_made(run());
  const fs::path file = folder / "cache/fut" / entries().at(0) / "model.safetensors";
  const std::string sound = read_file(file);
  for (const std::size_t at : {sound.size() / 2, std::size_t{30}}) {
    std::string damaged = sound;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    write_file(file, damaged);
    expect_made(run());
    EXPECT_TRUE(read_file(file) == sound);
  }
  for (const std::uintmax_t bytes : {1000, 8, 0}) {
    fs::resize_file(file, bytes);
    expect_made(run());
  }
  fs::remove(file);
  expect_made(run());
  expect_found(run());
}

TEST_F(Copies, AskedForFullPrecisionNameTheCheckpoint) {
  expect_made(run());
  const std::string entry = (folder / "cache/fut" / entries().at(0)).string();
  expect_failure(run_model(entry, {"--precision", "f32"}), 3, {"-m " + source.string()});
}

TEST_F(Copies, StayWhereTheUserWantsThem) {
  expect_made(run({"--cache-dir", (folder / "mine").string()}));
  EXPECT_TRUE(entries().empty());
  EXPECT_EQ(names_in(folder / "mine").size(), 1U);
  expect_found(run({}, with_variables({{"FUT_CACHE_DIR", (folder / "mine").string()}})));
}

TEST_F(Copies, WithoutACacheNothingStays) {
  const ProcessResult result = run({"--no-cache"});
  expect_made(result);
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"toy"});
  EXPECT_EQ(run().out, result.out);
}

TEST_F(Copies, ACacheThatCannotBeWrittenIsAWarningAndNoMore) {
  write_file(folder / "file", "");
  const ProcessResult result = run({"--cache-dir", (folder / "file").string()});
  expect_made(result);
  expect_mentions(result.err, {"warning", (folder / "file").string(), "temporary"});
  const ProcessResult homeless =
      run({}, with_variables({{"HOME", std::nullopt}, {"XDG_CACHE_HOME", std::nullopt}}));
  expect_made(homeless);
  expect_mentions(homeless.err, {"HOME", "temporary"});
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"file", "toy"}));
}

TEST_F(Copies, WithoutRoomOnAnyDiskTheRunGoesOnInBf16) {
  const ProcessResult result =
      shell("ulimit -f 64; exec \"$0\" run -m \"$1\" --raw -p x -n 4 -o json", {source.string()},
            in_default_precision(folder.path()));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_mentions(result.err, {"warning", "bf16"});
  EXPECT_EQ(json_of(result).at("precision"), "bf16");
  EXPECT_EQ(json_of(result).at("kv_cache").at("dtype"), "bf16");
  EXPECT_TRUE(entries().empty());
  // A measurement is not quietly made of something else.
  write_file(folder / "text", std::string(200, 'a'));
  const ProcessResult measured =
      shell("ulimit -f 64; exec \"$0\" perplexity -m \"$1\" -f \"$2\" --window 16",
            {source.string(), (folder / "text").string()}, in_default_precision(folder.path()));
  EXPECT_EQ(measured.exit_code, 1);
  EXPECT_EQ(measured.out, "");
}

TEST_F(Copies, WithoutRoomABatchIsNotResumedInAnotherPrecision) {
  const std::string rows = (folder / "rows").string(), replies = (folder / "replies").string();
  write_file(rows, "{\"prompt\": \"x\", \"raw\": true}\n{\"prompt\": \"y\", \"raw\": true}\n");
  const std::vector<std::string> words = {source.string(), rows, replies};
  const std::string command =
      "exec \"$0\" run -m \"$1\" -i \"$2\" -n 4 --output-file \"$3\" --resume";
  const auto keep_one_line = [&] {
    const std::string all = read_file(replies);
    write_file(replies, all.substr(0, all.find('\n') + 1));
  };
  const ProcessResult in_bf16 =
      shell("ulimit -f 64; " + command, words, in_default_precision(folder.path()));
  EXPECT_EQ(in_bf16.exit_code, 0) << in_bf16.err;
  expect_mentions(in_bf16.err, {"bf16"});
  keep_one_line();
  expect_failure(shell(command, words, in_default_precision(folder.path())), 3,
                 {"line 1", "other settings"});
  fs::remove(replies);
  EXPECT_EQ(shell(command, words, in_default_precision(folder.path())).exit_code, 0);
  keep_one_line();
  fs::remove_all(folder / "cache");
  const std::string before = read_file(replies);
  expect_failure(shell("ulimit -f 64; " + command, words, in_default_precision(folder.path())), 1,
                 {"bf16", "1 line", "--overwrite"});
  EXPECT_EQ(read_file(replies), before);
}

TEST_F(Copies, WithoutRoomAPrecisionThatWasAskedForIsAnError) {
  for (const char* precision : {"int4", "fp8"}) {
    const ProcessResult result =
        shell("ulimit -f 64; exec \"$0\" run -m \"$1\" --raw -p x -n 4 --precision \"$2\"",
              {source.string(), precision}, in_default_precision(folder.path()));
    expect_failure(result, 1, {"error", "model.safetensors"});
    EXPECT_EQ(result.err.find("bf16"), std::string::npos) << result.err;
  }
  EXPECT_TRUE(entries().empty());
}

TEST_F(Copies, ComputingInBf16InsteadIsSaidToTheQuietToo) {
  const ProcessResult result = shell("ulimit -f 64; exec \"$0\" run -m \"$1\" --raw -p x -n 4 -q",
                                     {source.string()}, in_default_precision(folder.path()));
  EXPECT_EQ(result.exit_code, 0);
  expect_mentions(result.err, {"warning", "bf16"});
  EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
}

TEST_F(Copies, ACacheInBf16SaysNothingOfRotation) {
  const ProcessResult result =
      shell("ulimit -f 64; exec \"$0\" run -m \"$1\" --raw -p x -n 4 -o json", {source.string()},
            in_default_precision(folder.path()));
  EXPECT_EQ(json_of(result).at("kv_cache"), nlohmann::json({{"dtype", "bf16"}}));
}

TEST_F(Copies, AHangupWhileOneIsMadeRemovesIt) {
  ProcessOptions options = in_default_precision(folder.path());
  options.arguments = {"run",        "-m", source_path("configs/demo-6m").string(),
                       "--no-cache", "-p", "x"};
  Process process(FUT_BINARY, on_cpu_in_f32(options));
  // The temporary folder is there before the quantiser starts.
  ASSERT_TRUE(process.wait_for_error("quantising"));
  process.send_signal(SIGHUP);
  const ProcessResult result = process.finish();
  EXPECT_EQ(result.exit_code, 129) << result.err;
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"toy"});
}

TEST_F(Copies, AScriptIsSaidInEveryPrecisionAndEndsWhereItShould) {
  Script script;  // leads by about 20 logits, which survives four bits
  script.say("\n\n", {"Hi", "<|eot_id|>", "BAD"});
  const std::string model = script.write();
  for (const char* precision : {"int4", "fp8", "bf16", "f32"}) {
    expect_success(fut({"run", "-m", model, "-p", "x", "-n", "8", "--precision", precision, "-q"},
                       in_default_precision(folder.path())),
                   "Hi\n");
  }
}

TEST_F(Copies, TheDemonstrationModelRunsAsItIs) {
  const ProcessResult result = fut({"run", "--raw", "-p", "Once upon a time", "-n", "8"},
                                   in_default_precision(folder.path()));
  expect_made(result);
  EXPECT_NE(result.out, "");
}

}  // namespace
}  // namespace fut::test
