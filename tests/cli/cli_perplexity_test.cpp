// fut perplexity: its report, how the text is cut, what it refuses, and comparisons of two models.
#include <cmath>

#include "tests/cli/quantized_case.h"

namespace fut::test {
namespace {

namespace fs = std::filesystem;

class Perplexity : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = std::make_unique<TempFolder>();
    source = write_toy_model(*folder / "toy", small_quantizable_model()).string();
    packed = (*folder / "q").string();
    ASSERT_EQ(fut({"quantize", "-m", source, "-o", packed, "-q"}).exit_code, 0);
    text = (*folder / "text").string();
    std::string words;
    for (int i = 0; i < 60; ++i) words += "line " + std::to_string(i * i) + " of a text\n";
    write_file(text, words);
  }
  static void TearDownTestSuite() { folder.reset(); }

  static ProcessResult measure(std::vector<std::string> more, const std::string& model = source) {
    std::vector<std::string> words = {"perplexity", "-m", model, "-f", text};
    words.insert(words.end(), more.begin(), more.end());
    ProcessOptions options;
    if (model == packed) options = in_default_precision(folder->path());
    return fut(words, std::move(options));
  }
  static nlohmann::json report(std::vector<std::string> more, const std::string& model = source) {
    more.insert(more.end(), {"-o", "json"});
    const ProcessResult result = measure(std::move(more), model);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json_of(result);
  }

  static std::unique_ptr<TempFolder> folder;
  static std::string source, packed, text;
};
std::unique_ptr<TempFolder> Perplexity::folder;
std::string Perplexity::source, Perplexity::packed, Perplexity::text;

// ---- the report --------------------------------------------------------------------------------

TEST_F(Perplexity, ReportsWhatWasMeasuredAndHow) {
  const auto r = report({"--window", "64"});
  EXPECT_EQ(r.at("precision"), "f32");
  EXPECT_EQ(r.at("kv_cache").at("dtype"), "f32");
  EXPECT_EQ(r.at("path"), "prefill");
  EXPECT_EQ(r.at("window"), 64);
  EXPECT_EQ(r.at("tokens").get<int>(), r.at("windows").get<int>() * 63);
  EXPECT_GT(r.at("windows"), 5);
  EXPECT_DOUBLE_EQ(r.at("ppl").get<double>(), std::exp(r.at("nll").get<double>()));
  EXPECT_GT(r.at("stderr"), 0);
  EXPECT_FALSE(r.contains("against"));
}

TEST_F(Perplexity, TheTextHasTheSameNumbersAndOneDocument) {
  const ProcessResult result = measure({"--window", "64", "--windows", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  expect_mentions(result.out,
                  {"perplexity ", "+-", "63 scored tokens in 1 window of 64", "prefill", "f32"});
}

TEST_F(Perplexity, AModelAgainstItselfDiffersInNothing) {
  const auto r = report({"--window", "64", "--against", "f32"}).at("against");
  EXPECT_EQ(r.at("precision"), "f32");
  EXPECT_EQ(r.at("paired"), 0);
  EXPECT_EQ(r.at("paired_stderr"), 0);
  EXPECT_EQ(r.at("kl"), 0);
  EXPECT_EQ(r.at("top1"), 1);
}

TEST_F(Perplexity, ThePairedDifferenceIsThatOfTheTwoMeans) {
  const auto r = report({"--window", "64", "--against", source}, packed);
  EXPECT_EQ(r.at("precision"), "int4");
  const auto& against = r.at("against");
  EXPECT_EQ(against.at("model"), source);
  EXPECT_EQ(against.at("precision"), "f32");
  EXPECT_GT(against.at("kl"), 0);
  EXPECT_LT(against.at("top1"), 1);
  const double expected = r.at("nll").get<double>() - std::log(against.at("ppl").get<double>());
  // Both sides round sums of about the size of the nll a few times.
  const double bound = 64 * 0x1p-52 * r.at("nll").get<double>();
  EXPECT_NEAR(against.at("paired").get<double>(), expected, bound);
}

TEST_F(Perplexity, TheOtherModelHasTheDefaultsOfItsPrecision) {
  const auto kl = [](std::vector<std::string> more) {
    more.insert(more.end(),
                {"--window", "64", "--windows", "2", "--path", "decode", "--against", ":int4"});
    return report(more, packed).at("against").at("kl").get<double>();
  };
  EXPECT_EQ(kl({}), 0);
  EXPECT_GT(kl({"--no-kv-rotation"}), 0);
  EXPECT_GT(kl({"--kv-group", "32"}), 0);
  EXPECT_GT(kl({"--head", "bf16"}), 0);
}

TEST_F(Perplexity, EveryPrecisionPathAndCacheIsMeasured) {
  for (const char* precision : {"int4", "fp8"}) {
    for (const char* path : {"prefill", "decode"}) {
      for (const char* cache : {"int4", "bf16"}) {
        const auto r = report({"--window", "64", "--windows", "2", "--precision", precision,
                               "--path", path, "--kv-cache-dtype", cache},
                              packed);
        EXPECT_EQ(r.at("precision"), precision);
        EXPECT_EQ(r.at("path"), path);
        EXPECT_EQ(r.at("kv_cache").at("dtype"), cache);
      }
    }
  }
  EXPECT_EQ(report({"--window", "64", "--precision", "bf16"}).at("precision"), "bf16");
}

TEST_F(Perplexity, LockStepAndThreadsChangeNoBit) {
  const auto nll = [](std::vector<std::string> more) {
    more.insert(more.end(), {"--window", "48", "--windows", "5", "--path", "decode"});
    return report(more, packed).at("nll").get<double>();
  };
  const double alone = nll({"--lock-step", "1"});
  EXPECT_EQ(nll({"--lock-step", "3"}), alone);
  EXPECT_EQ(nll({"--lock-step", "16", "-t", "1"}), alone);
}

// ---- the text ----------------------------------------------------------------------------------

TEST_F(Perplexity, OneBosStandsInFrontOfTheWholeText) {
  const ProcessResult ids = fut({"tokenize", "-m", source, "-f", text, "-o", "json"});
  const int tokens = static_cast<int>(json_of(ids).at("ids").size());
  const std::string all = std::to_string(tokens);
  EXPECT_EQ(report({"--window", all}).at("windows"), 1);
  expect_failure(measure({"--window", std::to_string(tokens + 1)}), 3,
                 {text, all + " tokens", std::to_string(tokens + 1), "--window"});
  const int half = tokens / 2;
  EXPECT_EQ(report({"--window", std::to_string(half)}).at("windows"), 2);
}

TEST_F(Perplexity, WikitextRowsAreJoinedAsPublishedFiguresHaveThem) {
  const auto nll = [](const std::string& bytes, std::vector<std::string> more) {
    write_file(*folder / "rows", bytes);
    std::vector<std::string> words = {
        "perplexity", "-m", source, "-f",  (*folder / "rows").string(),
        "--window",   "20", "-o",   "json"};
    words.insert(words.end(), more.begin(), more.end());
    return json_of(fut(words)).at("nll");
  };
  const std::string raw = " \n = Title = \n \n Some words . \n";
  const std::string rows = "\n\n = Title = \n\n\n\n\n Some words . \n";
  EXPECT_EQ(nll(raw, {"--wikitext"}), nll(rows, {}));
  EXPECT_NE(nll(raw, {}), nll(rows, {}));
}

TEST_F(Perplexity, StandardInputIsATextToo) {
  const ProcessResult result = fut({"perplexity", "-m", source, "-f", "-", "--window", "16"},
                                   with_input(std::string(100, 'x')));
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

// ---- what it refuses ---------------------------------------------------------------------------

TEST_F(Perplexity, RefusesWhatCannotBeMeasured) {
  expect_failure(fut({"perplexity", "-m", source}), 2, {"-f"});
  expect_failure(fut({"perplexity", "-m", source, "-f", "/nowhere/text"}), 3, {"/nowhere/text"});
  expect_failure(measure({"--window", "1025"}), 2, {"--window", "1025", "1024"});
  expect_failure(measure({"--window", "1"}), 2, {"--window"});
  expect_failure(measure({"--path", "both"}), 2, {"prefill", "decode"});
  expect_failure(measure({"--precision", "int8"}), 2, {"int4", "fp8", "bf16", "f32"});
  expect_failure(measure({"--kv-cache-dtype", "int4"}), 2, {"--kv-cache-dtype", "f32"});
  expect_failure(measure({"--against", source + ":int3"}), 2, {"int3", "int4"});
  expect_failure(measure({"--against", "/nowhere/model"}), 3, {"/nowhere/model"});
}

TEST_F(Perplexity, TheTextIsNeverOverwrittenByTheResult) {
  const std::string before = read_file(text);
  fs::create_symlink(text, *folder / "link");
  for (const std::string& output : {text, (*folder / "link").string()}) {
    expect_failure(measure({"--window", "64", "--output-file", output}), 2,
                   {"--output-file", output, "is the input"});
  }
  const ProcessResult piped =
      shell("exec \"$0\" perplexity -m \"$1\" -f - --output-file \"$2\" <\"$2\"", {source, text});
  expect_failure(piped, 2, {"is the input", "standard input"});
  expect_failure(fut({"tokenize", "-m", source, "-f", text, "--output-file", text}), 2,
                 {"is the input"});
  expect_failure(fut({"run", "-m", source, "-f", text, "--output-file", text}), 2,
                 {"is the input"});
  EXPECT_EQ(read_file(text), before);
}

TEST_F(Perplexity, FlagsThatWouldDoNothingAreRefused) {
  expect_failure(measure({"--lock-step", "4"}), 2, {"--lock-step", "--path decode"});
  expect_failure(measure({"--head", "bf16"}), 2, {"--head", "f32"});
  expect_failure(measure({"--kv-group", "32"}), 2, {"--kv-group", "INT4 cache"});
  expect_failure(measure({"--no-kv-rotation", "--kv-cache-dtype", "bf16"}, packed), 2,
                 {"--no-kv-rotation", "bf16"});
}

TEST_F(Perplexity, WhatIsWrongWithTheOtherModelIsSaidOfAgainst) {
  const ProcessResult nowhere = measure({"--window", "64", "--against", "/nowhere/m:f32"});
  expect_failure(nowhere, 3, {"--against /nowhere/m"});
  EXPECT_EQ(nowhere.err.find("-m /nowhere"), std::string::npos);
  const ProcessResult full = measure({"--window", "64", "--against", packed + ":bf16"});
  expect_failure(full, 3, {"--against", packed, "bf16", "int4 or fp8"});
  EXPECT_EQ(full.err.find("with -m"), std::string::npos);
}

TEST_F(Perplexity, TwoModelsNeedTheSameTokens) {
  ToyModelOptions other = small_quantizable_model();
  other.vocab_size = 600;
  const std::string model = write_toy_model(*folder / "other", other).string();
  expect_failure(measure({"--window", "64", "--against", model}), 3, {model, "512", "600"});
}

TEST_F(Perplexity, FailuresAreOneDocument) {
  const ProcessResult result = measure({"--window", "2000", "-o", "json"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(json_of(result).at("error").at("kind"), "usage");
}

}  // namespace
}  // namespace fut::test
