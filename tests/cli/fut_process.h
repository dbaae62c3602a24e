// Short ways to run the binary under test and to look at what it did. For tests/cli only.
#pragma once

#include <filesystem>
#include <gtest/gtest.h>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/run_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"
#include "tests/support/toy_models.h"

namespace fut::test {

// On the CPU, whatever the machine has, and in float32, which toy models of any shape can be computed
// in, unless the variables say otherwise.
inline ProcessOptions on_cpu_in_f32(ProcessOptions options) {
  options.environment.try_emplace("FUT_DEVICE", "cpu");
  options.environment.try_emplace("FUT_PRECISION", "f32");
  return options;
}

// Runs to the end, on_cpu_in_f32 unless the arguments say otherwise.
inline ProcessResult fut(std::vector<std::string> arguments, ProcessOptions options = {}) {
  options.arguments = std::move(arguments);
  return run_process(FUT_BINARY, on_cpu_in_f32(std::move(options)));
}

// The options of a run whose standard input holds `bytes`.
inline ProcessOptions with_input(std::string bytes) {
  ProcessOptions options;
  options.input = std::move(bytes);
  return options;
}

inline ProcessOptions with_variables(
    std::map<std::string, std::optional<std::string>> environment) {
  ProcessOptions options;
  options.environment = std::move(environment);
  return options;
}

// All of standard output as exactly one JSON document.
inline nlohmann::json json_of(const ProcessResult& result) {
  nlohmann::json document = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_FALSE(document.is_discarded()) << "not one JSON document: " << result.out;
  return document;
}

inline std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

inline void expect_mentions(std::string_view text, std::initializer_list<std::string> facts) {
  for (const std::string& fact : facts) {
    EXPECT_NE(text.find(fact), std::string_view::npos) << "no '" << fact << "' in: " << text;
  }
}

// A failure as users should meet it: this code, nothing on standard output, one line of reason that
// names the facts, no death by signal.
inline void expect_failure(const ProcessResult& result, int code,
                           std::initializer_list<std::string> facts) {
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.exit_code, code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err.find("terminate called"), std::string::npos) << result.err;
  expect_mentions(result.err, facts);
}

inline void expect_success(const ProcessResult& result, std::string_view out) {
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, out) << result.err;
}

// A scripted model with the folder that it is written to.
struct Script {
  explicit Script(ToyTokenizer tokenizer = ToyTokenizer::Json) : model(tokenizer) {}

  // In the chat form the last prompt token is "\n\n"; in raw text it is what the prompt ends with.
  Script& say(std::string_view first, std::initializer_list<std::string_view> others) {
    model.say(first, others);
    return *this;
  }
  // The path for -m.
  [[nodiscard]] std::string write() const {
    return write_scripted_model(*folder / "model", model).string();
  }

  ScriptedModel model;
  std::unique_ptr<TempFolder> folder = std::make_unique<TempFolder>();
};

}  // namespace fut::test
