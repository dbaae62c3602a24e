// fut quantize: what it writes and says, what it refuses, and that nothing half-made stays behind.
#include <algorithm>
#include <csignal>
#include <thread>

#include "tests/cli/quantized_case.h"

namespace fut::test {
namespace {

namespace fs = std::filesystem;

class Quantize : public testing::Test {
 protected:
  fs::path write(const std::string& name, const ToyModelOptions& options) {
    return write_toy_model(folder / name, options);
  }

  TempFolder folder;
  fs::path source = write("toy", small_quantizable_model());
};

// ---- what it makes -----------------------------------------------------------------------------

TEST_F(Quantize, WritesAFolderThatRunsInThePlaceOfTheCheckpoint) {
  const fs::path target = folder / "new/q";
  const ProcessResult made = fut({"quantize", "-m", source.string(), "-o", target.string()});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(made.err, "");
  expect_mentions(made.out, {target.string(), "rtn", "128", "worst first", "gate_up_proj"});
  EXPECT_EQ(files_of(target).at("config.json"), read_file(source / "config.json"));
  const ProcessResult run =
      fut({"run", "-m", target.string(), "--raw", "-p", "x", "-n", "4", "-o", "json"},
          in_default_precision(folder.path()));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(json_of(run).at("precision"), "int4");
  EXPECT_EQ(json_of(run).at("kv_cache").at("dtype"), "int4");
}

TEST_F(Quantize, NamesTheFolderBesideTheCheckpointAfterMethodAndGroup) {
  ASSERT_EQ(fut({"quantize", "-m", source.string() + "/", "--group-size", "64"}).exit_code, 0);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"toy", "toy-rtn-g64"}));
}

TEST_F(Quantize, TheReportHasEveryMatrixWorstFirst) {
  const ProcessResult result = fut({"quantize", "-m", source.string(), "--json"});
  const auto report = json_of(result);
  const auto& matrices = report.at("matrices");
  ASSERT_EQ(matrices.size(), 8U);  // four of each layer
  for (std::size_t i = 1; i < matrices.size(); ++i) {
    EXPECT_GE(matrices[i - 1].at("relative_error"), matrices[i].at("relative_error"));
  }
  EXPECT_EQ(report.at("options").at("method"), "rtn");
  EXPECT_EQ(report.at("options").at("rotate"), false);
  EXPECT_GT(report.at("calibration_tokens"), 0);
  EXPECT_EQ(report.at("bytes").get<std::uint64_t>() > 0, true);
}

TEST_F(Quantize, GptqRotatesUnlessItIsToldNotTo) {
  const std::vector<std::string> gptq = {"quantize", "-m",     source.string(),  "--method",
                                         "gptq",     "--json", "--calib-tokens", "512"};
  EXPECT_EQ(json_of(fut(gptq)).at("options").at("rotate"), true);
  std::vector<std::string> plain = gptq;
  plain.insert(plain.end(), {"--no-rotate", "--overwrite"});
  const auto report = json_of(fut(plain));
  EXPECT_EQ(report.at("options").at("rotate"), false);
  EXPECT_LE(report.at("matrices").at(0).at("relative_loss"),
            report.at("matrices").at(0).at("rtn_loss"));
}

TEST_F(Quantize, TakesACalibrationTextOfTheUsersAndSaysSoInTheFile) {
  write_file(folder / "mine.txt", std::string(3000, 'a') + " b");
  const auto report = json_of(fut(
      {"quantize", "-m", source.string(), "--json", "--calib", (folder / "mine.txt").string()}));
  EXPECT_EQ(report.at("options").at("calibration").at("name"), "mine.txt");
  EXPECT_EQ(report.at("options").at("calibration").at("bytes"), 3002);
}

TEST_F(Quantize, TheSameBytesFromAnyFolderOnAnyNumberOfThreads) {
  ASSERT_EQ(
      fut({"quantize", "-m", source.string(), "-o", (folder / "a").string(), "-t", "1"}).exit_code,
      0);
  ASSERT_EQ(
      fut({"quantize", "-m", source.string(), "-o", (folder / "b").string(), "-t", "3"}).exit_code,
      0);
  ASSERT_EQ(shell("cd \"$1\" && exec \"$0\" quantize -m . -o ../c -q", {source.string()}).exit_code,
            0);
  const auto a = files_of(folder / "a");
  EXPECT_TRUE(a == files_of(folder / "b"));
  EXPECT_TRUE(a == files_of(folder / "c"));
  // Neither a path nor a time of this machine is part of it.
  EXPECT_EQ(a.at("model.safetensors").find(folder.path().string()), std::string::npos);
}

TEST_F(Quantize, OptionsThatChangeTheResultAreToldApart) {
  write_file(folder / "text", "A short text is enough here.");
  const auto weights = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"quantize",
                                      "-m",
                                      source.string(),
                                      "-o",
                                      (folder / "q").string(),
                                      "--overwrite",
                                      "-q",
                                      "--calib",
                                      (folder / "text").string()};
    words.insert(words.end(), more.begin(), more.end());
    EXPECT_EQ(fut(words).exit_code, 0);
    return files_of(folder / "q").at("model.safetensors");
  };
  const std::string usual = weights({});
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--rotate"},
                                               {"--rotate", "--rotation-seed", "1"},
                                               {"--no-balance-qk"},
                                               {"--no-balance-ffn"},
                                               {"--no-kv-rotation"},
                                               {"--group-size", "64"}}) {
    EXPECT_FALSE(weights(more) == usual) << more[0];
  }
  EXPECT_TRUE(weights({"--no-rotate", "--balance-qk", "--balance-ffn", "--kv-rotation"}) == usual);
}

TEST_F(Quantize, TheCardOfGptqIsInTheOrderOfItsLosses) {
  const std::vector<std::string> words = {
      "quantize",       "-m", source.string(),         "--method",       "gptq", "--scales",
      "minmax",         "-o", (folder / "q").string(), "--calib-tokens", "1500", "--overwrite",
      "--no-balance-qk"};
  const ProcessResult text = fut(words);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  expect_mentions(text.out, {"scales minmax", "loss", "of rtn", "error", "matrix"});
  // The model's context is a window, and two do not fit into 1500.
  expect_mentions(text.err, {"--calib-tokens 1500", "1024 are used", "whole windows of 1024"});
  std::vector<std::string> json = words;
  json.emplace_back("--json");
  const auto matrices = json_of(fut(json)).at("matrices");
  for (std::size_t i = 1; i < matrices.size(); ++i) {
    EXPECT_GE(matrices[i - 1].at("relative_loss"), matrices[i].at("relative_loss"));
  }
}

TEST_F(Quantize, AFalseValueOfAVariableOrAFileIsTheOppositeOfItsSwitch) {
  const auto options = [&](std::map<std::string, std::optional<std::string>> variables,
                           std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"quantize",       "-m", source.string(), "--method",   "gptq",
                                      "--calib-tokens", "64", "--json",        "--overwrite"};
    words.insert(words.end(), more.begin(), more.end());
    return json_of(fut(words, with_variables(std::move(variables)))).at("options");
  };
  EXPECT_EQ(options({{"FUT_ROTATE", "0"}}).at("rotate"), false);
  EXPECT_EQ(options({{"FUT_BALANCE_QK", "false"}}).at("balance_qk"), false);
  EXPECT_EQ(options({{"FUT_KV_ROTATION", "no"}}).at("kv_rotation"), false);
  EXPECT_EQ(options({{"FUT_ROTATE", "0"}}, {"--rotate"}).at("rotate"), true);
  const std::string config = (folder / "fut.conf").string();
  write_file(config, "rotate = off\nbalance-ffn = 0\n");
  EXPECT_EQ(options({}, {"--config", config}).at("rotate"), false);
  EXPECT_EQ(options({}, {"--config", config}).at("balance_ffn"), false);
  EXPECT_EQ(options({{"FUT_ROTATE", "on"}}, {"--config", config}).at("rotate"), true);
}

TEST_F(Quantize, ACardThatCannotBePrintedLeavesTheFolderComplete) {
  const ProcessResult result = shell("exec \"$0\" quantize -m \"$1\" -o \"$2\" >/dev/full",
                                     {source.string(), (folder / "q").string()});
  expect_failure(result, 1, {(folder / "q").string() + " is complete", "report card"});
  EXPECT_EQ(fut({"inspect", "-m", (folder / "q").string(), "--check-tensors"}).exit_code, 0);
}

// ---- what it refuses ---------------------------------------------------------------------------

TEST_F(Quantize, WidthsThatTheGroupDoesNotDivideAreRefusedBeforeAnything) {
  ToyModelOptions options = small_quantizable_model();
  options.hidden_size = 192;
  options.num_q_heads = 3;
  options.intermediate_size = 344;
  options.vocab_size = 515;
  const fs::path bad = write("bad", options);
  for (const char* group : {"128", "64"}) {
    const ProcessResult result = fut({"quantize", "-m", bad.string(), "--group-size", group});
    expect_failure(result, 3, {"bad", "qkv_proj", "192", "128", "--precision f32"});
  }
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"bad", "toy"}));
  // Neither does a run in the default precision.
  expect_failure(
      fut({"run", "-m", bad.string(), "--raw", "-p", "x"}, in_default_precision(folder.path())), 3,
      {"bad", "192", "--precision f32"});
  EXPECT_EQ(fut({"run", "-m", bad.string(), "--raw", "-p", "x", "-n", "1"}).exit_code, 0);
}

TEST_F(Quantize, AnInnerWidthOfTheFeedForwardIsNamedToo) {
  ToyModelOptions options = small_quantizable_model();
  options.intermediate_size = 344;
  expect_failure(fut({"quantize", "-m", write("bad", options).string()}), 3,
                 {"down_proj", "344", "128"});
}

TEST_F(Quantize, OddNumbersOfRowsAndHeadsAreFine) {
  ToyModelOptions options = small_quantizable_model();
  options.num_q_heads = 6;
  options.num_kv_heads = 3;
  options.vocab_size = 515;
  const fs::path odd = write("odd", options);
  ASSERT_EQ(fut({"quantize", "-m", odd.string(), "-q"}).exit_code, 0);
  EXPECT_EQ(fut({"run", "-m", odd.string() + "-rtn-g128", "--raw", "-p", "x", "-n", "2"},
                in_default_precision(folder.path()))
                .exit_code,
            0);
}

TEST_F(Quantize, BrokenSourcesAreNamedAndLeaveNothing) {
  const fs::path cut = write("cut", small_quantizable_model());
  fs::resize_file(cut / "model.safetensors", fs::file_size(cut / "model.safetensors") - 1);
  expect_failure(fut({"quantize", "-m", cut.string()}), 3, {"cut/model.safetensors"});
  const fs::path nan = write_changed_toy_model(
      folder / "nan", small_quantizable_model(), [](std::vector<NamedTensor>& tensors) {
        NamedTensor& up = tensor_named(tensors, "model.layers.1.mlp.up_proj.weight");
        up.bytes[up.bytes.size() - 1] = '\x7f';  // the high byte of a BF16 NaN
        up.bytes[up.bytes.size() - 2] = '\xff';
      });
  const ProcessResult result = fut({"quantize", "-m", nan.string()});
  expect_failure(result, 3, {"up_proj", "1"});
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"cut", "nan", "toy"}));
}

TEST_F(Quantize, HeadsOfAnotherSizeAreRefused) {
  const fs::path small = write("small", {});  // heads of 16
  expect_failure(fut({"quantize", "-m", small.string()}), 3, {"16", "64", "128"});
}

TEST_F(Quantize, BadFlagsAreUsageErrorsThatNameWhatIsAllowed) {
  const std::string model = source.string();
  expect_failure(fut({"quantize", "-m", model, "--method", "awq"}), 2, {"awq", "rtn", "gptq"});
  for (const char* group : {"32", "192", "0", "7", "1000000000", "x"}) {
    expect_failure(fut({"quantize", "-m", model, "--group-size", group}), 2,
                   {"--group-size", group, "128", "64"});
  }
  expect_failure(fut({"quantize", "-m", model, "--calib-tokens", "1"}), 2, {"--calib-tokens"});
  expect_failure(fut({"quantize", "-m", model, "--rotate", "--no-rotate"}), 2,
                 {"--rotate", "--no-rotate"});
  expect_failure(fut({"quantize", "-m", model, "--rotation-seed", "3"}), 2,
                 {"--rotation-seed 3", "--rotate", "rtn"});
  expect_failure(
      fut({"quantize", "-m", model, "--method", "gptq", "--no-rotate", "--rotation-seed", "3"}), 2,
      {"--rotation-seed 3", "switched off"});
  expect_failure(fut({"quantize", "-m", model, "-o", "json"}), 2, {"--json", "./json"});
}

TEST_F(Quantize, ACalibrationTextThatIsNotThereOrEmptyIsRefused) {
  const std::string model = source.string();
  expect_failure(fut({"quantize", "-m", model, "--calib", "/nowhere/text"}), 3, {"/nowhere/text"});
  write_file(folder / "empty", "");
  expect_failure(fut({"quantize", "-m", model, "--calib", (folder / "empty").string()}), 3,
                 {"empty", "0 bytes"});
}

TEST_F(Quantize, AFolderThatIsThereIsKeptUnlessItMayBeReplaced) {
  const std::string target = (folder / "q").string();
  const std::vector<std::string> words = {"quantize", "-m", source.string(), "-o", target};
  ASSERT_EQ(fut(words).exit_code, 0);
  expect_failure(fut(words), 3, {target, "--overwrite"});
  std::vector<std::string> again = words;
  again.emplace_back("--overwrite");
  EXPECT_EQ(fut(again).exit_code, 0);
  // Never one that holds something else.
  again[2] = target;  // a source that is quantised already
  expect_failure(fut(again), 3, {target, "quantised already"});
  fs::create_directory(folder / "letters");
  write_file(folder / "letters/a", "dear");
  again[2] = source.string();
  again[4] = (folder / "letters").string();
  expect_failure(fut(again), 3, {"letters", "-o"});
  EXPECT_EQ(read_file(folder / "letters/a"), "dear");
}

TEST_F(Quantize, FailuresAreOneDocumentWhereJsonWasAskedFor) {
  const ProcessResult result = fut({"quantize", "-m", "/nowhere", "--json"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(json_of(result).at("error").at("kind"), "data");
}

// ---- a disk that is full, writers that are killed ----------------------------------------------

TEST_F(Quantize, AFullDiskLeavesNothingBehindAndTheNextRunWorks) {
  // A limit on the size of files stands for the disk; with and without the signal that comes along.
  for (const char* trap : {"trap '' XFSZ; ", ""}) {
    const ProcessResult result =
        shell(std::string(trap) + "ulimit -f 64; exec \"$0\" quantize -m \"$1\" -o \"$2\"",
              {source.string(), (folder / "q").string()});
    expect_failure(result, 1, {(folder / "q").string()});
    EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"toy"});
  }
  EXPECT_EQ(fut({"quantize", "-m", source.string(), "-o", (folder / "q").string()}).exit_code, 0);
}

TEST_F(Quantize, APlaceThatIsNoFolderIsNamed) {
  write_file(folder / "file", "");
  expect_failure(fut({"quantize", "-m", source.string(), "-o", (folder / "file/q").string()}), 1,
                 {(folder / "file").string()});
}

// The quantiser of a model that takes a while, stopped as soon as it writes, or as it has a layer.
class StoppedQuantizer : public testing::Test {
 protected:
  ProcessResult stop(int signal, const std::string& tokens = "100000",
                     const std::string& file = "") {
    ProcessOptions options;
    options.arguments = words(tokens);
    Process process(FUT_BINARY, on_cpu_in_f32(options));
    const auto give_up = std::chrono::steady_clock::now() + kProcessTimeout;
    while (!has_written(file) && std::chrono::steady_clock::now() < give_up) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    process.send_signal(signal);
    return process.finish();
  }
  [[nodiscard]] std::vector<std::string> words(const std::string& tokens) const {
    return {"quantize", "-m",     source_path("configs/demo-6m").string(),
            "-o",       target(), "--method",
            "gptq",     "-v",     "--calib-tokens",
            tokens};
  }
  [[nodiscard]] bool has_written(const std::string& file) const {
    const std::vector<std::string> names = names_in(folder.path());
    return !names.empty() && fs::exists(folder / names.front() / file);
  }
  [[nodiscard]] std::string target() const { return (folder / "q").string(); }
  [[nodiscard]] bool is_there() const { return fs::exists(folder / "q"); }

  TempFolder folder;
};

TEST_F(StoppedQuantizer, AnInterruptBeforeALayerIsDoneRemovesWhatWasWritten) {
  const ProcessResult result = stop(SIGINT);
  EXPECT_EQ(result.exit_code, 130) << result.err;
  expect_mentions(result.err, {"interrupted before a layer", "nothing of this run is kept"});
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST_F(StoppedQuantizer, AHangupDoesTheSameAndIsToldApart) {
  const ProcessResult result = stop(SIGHUP);
  EXPECT_EQ(result.exit_code, 129) << result.err;
  expect_mentions(result.err, {"interrupted", "nothing was written"});
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST_F(StoppedQuantizer, AnInterruptKeepsTheLayersThatAreDoneAndTheSameCommandGoesOn) {
  const std::string tokens = "1024";
  const ProcessResult stopped = stop(SIGTERM, tokens, "progress");
  EXPECT_EQ(stopped.exit_code, 128 + SIGTERM) << stopped.err;
  const std::vector<std::string> left = names_in(folder.path());
  ASSERT_EQ(left.size(), 1U) << stopped.err;
  expect_mentions(stopped.err, {"interrupted; the first ", " of 6 layers are kept in ", left[0],
                                "the same command goes on"});
  // One that goes on and is interrupted at once keeps what it found.
  ProcessOptions options;
  options.arguments = words(tokens);
  Process process(FUT_BINARY, on_cpu_in_f32(options));
  ASSERT_TRUE(process.wait_for_error("going on after layer "));
  process.send_signal(SIGINT);
  const ProcessResult once_more = process.finish();
  EXPECT_EQ(once_more.exit_code, 128 + SIGINT) << once_more.err;
  expect_mentions(once_more.err, {"interrupted; the first ", " layers are kept in "});
  const ProcessResult whole = fut(words(tokens));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  expect_mentions(whole.err, {"going on after layer ", " of 6"});
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"q"});
  const auto resumed = files_of(folder / "q");
  std::vector<std::string> again = words(tokens);
  again.emplace_back("--overwrite");
  const ProcessResult anew = fut(again);
  EXPECT_EQ(anew.err.find("going on"), std::string::npos) << anew.err;
  EXPECT_TRUE(files_of(folder / "q") == resumed);
}

TEST_F(StoppedQuantizer, AKilledOneLeavesNothingUnderTheNameAndTheNextRunClearsUp) {
  EXPECT_EQ(stop(SIGKILL).signal, SIGKILL);
  EXPECT_FALSE(is_there());
  const fs::path toy = write_toy_model(folder / "toy", small_quantizable_model());
  ASSERT_EQ(fut({"quantize", "-m", toy.string(), "-o", target()}).exit_code, 0);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"q", "toy"}));
}

}  // namespace
}  // namespace fut::test
