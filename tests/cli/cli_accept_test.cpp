// The acceptance script for users who have Llama-3.1-8B: that it runs and judges. What it would say of
// that model is not tested here.
#include "tests/cli/quantized_case.h"

namespace fut::test {
namespace {

namespace fs = std::filesystem;

ProcessResult accept(std::vector<std::string> more, const fs::path& folder) {
  ProcessOptions options = in_default_precision(folder);
  options.arguments = {source_path("tests/accept/llama31.sh").string(),
                       "--fut",
                       FUT_BINARY,
                       "--device",
                       "cpu",
                       "--window",
                       "32",
                       "--windows",
                       "2",
                       "--calib-tokens",
                       "256"};
  options.arguments.insert(options.arguments.end(), more.begin(), more.end());
  return run_process("/bin/bash", options);
}

// Rows of the table that end with the verdict.
std::size_t rows_with(const std::string& table, const std::string& verdict) {
  std::size_t count = 0;
  for (const std::string& line : lines_of(table)) count += line.find(verdict) != std::string::npos;
  return count;
}

TEST(Acceptance, PrintsARowForEachPromiseAndCleansUp) {
  const TempFolder folder;
  const fs::path model = write_toy_model(folder / "toy", small_quantizable_model());
  write_file(folder / "text", std::string(400, 'a') + "\n \nb\n");
  const ProcessResult result =
      accept({"--c4", (folder / "text").string(), model.string(), (folder / "text").string()},
             folder.path());
  // Random weights are far from any promise about perplexities.
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(rows_with(result.out, " pass") + rows_with(result.out, " fail"), 8U) << result.out;
  EXPECT_GE(rows_with(result.out, " fail"), 6U);
  EXPECT_EQ(rows_with(result.out, "did not run"), 0U) << result.err;
  EXPECT_EQ(rows_with(result.out, "GPTQ"), 2U);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"text", "toy"}));
}

TEST(Acceptance, ARowThatCannotBeMeasuredFailsAndOneWithoutItsTextIsNotJudged) {
  const TempFolder folder;
  const fs::path model = write_toy_model(folder / "toy");  // heads of 16 cannot be quantised
  write_file(folder / "text", std::string(400, 'a'));
  const ProcessResult result = accept({model.string(), (folder / "text").string()}, folder.path());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(rows_with(result.out, "did not run"), 6U) << result.out;
  EXPECT_EQ(rows_with(result.out, "n/a (give --c4 FILE)"), 1U);
}

TEST(Acceptance, WrongUsageIsToldApart) {
  const TempFolder folder;
  EXPECT_EQ(accept({}, folder.path()).exit_code, 2);
  EXPECT_EQ(accept({"--nothing"}, folder.path()).exit_code, 2);
  const ProcessResult nowhere = accept({"/nowhere"}, folder.path());
  expect_failure(nowhere, 3, {"/nowhere", "config.json"});
}

TEST(Acceptance, WhatCannotWorkIsToldBeforeAnythingRuns) {
  const TempFolder folder;
  const fs::path model = write_toy_model(folder / "toy", small_quantizable_model());
  write_file(folder / "text", "a");
  const auto refused = [&](std::vector<std::string> more, int code, const std::string& fact) {
    more.insert(more.end(), {model.string(), (folder / "text").string()});
    const ProcessResult result = accept(more, folder.path());
    expect_failure(result, code, {fact});
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
  };
  refused({"--windows", "many"}, 2, "--windows 'many'");
  refused({"--window", "0"}, 2, "--window '0'");
  refused({"--calib-tokens", "-5"}, 2, "--calib-tokens '-5'");
  refused({"--calib", "/nowhere/text"}, 3, "/nowhere/text");
  refused({"--fut", (folder / "text").string()}, 3, (folder / "text").string());
  refused({"--fut", "/nowhere/fut"}, 3, "/nowhere/fut");
  refused({"--work", (folder / "text/work").string()}, 3, (folder / "text/work").string());
}

}  // namespace
}  // namespace fut::test
