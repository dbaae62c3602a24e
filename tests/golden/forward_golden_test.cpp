// The float32 forward pass against what other implementations give for three trained models: greedy
// ids, logits and perplexity. The goldens come from transformers in float32 (demo-6m, novels-19m)
// and from a float64 reference (tinystories-656k). The bounds are those that the goldens are quoted
// for: 1e-3 absolute on a logit of size 10 is eight times float32's rounding of 400 sums of 400
// terms.
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/model_runner.h"
#include "tests/support/test_data.h"

namespace fut::test {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

constexpr double kLogitTolerance = 1e-3;
constexpr double kPerplexityTolerance = 1e-4;  // relative

json read_json(const std::filesystem::path& path) {
  return json::parse(std::ifstream(path));
}

// Windows of `length` uint16 ids, little-endian.
std::vector<Ids> read_windows(const std::filesystem::path& path, std::size_t windows,
                              std::size_t length) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Ids> all(windows, Ids(length));
  for (Ids& window : all) {
    for (std::int32_t& id : window) {
      const int low = file.get();
      id = low | file.get() << 8;
    }
  }
  EXPECT_TRUE(file.good()) << path << " is shorter than " << windows << " x " << length << " ids";
  return all;
}

void expect_greedy(const std::filesystem::path& model, const json& golden) {
  ModelRunner runner(model);
  const Ids end_ids = runner.config().eos_token_ids;
  ASSERT_FALSE(golden["cases"].empty());
  for (const json& c : golden["cases"]) {
    SCOPED_TRACE(c["text"].get<std::string>());
    const auto expected = c["greedy_ids"].get<Ids>();
    const bool ends = std::find(end_ids.begin(), end_ids.end(), expected.back()) != end_ids.end();
    // One more than expected where the end token stopped it: the end has to be noticed.
    const int max_new = static_cast<int>(expected.size()) + (ends ? 1 : 0);
    EXPECT_EQ(runner.greedy(c["prompt_ids"].get<Ids>(), max_new, end_ids), expected);
  }
}

void expect_last_logits(const std::filesystem::path& model, const json& golden) {
  ModelRunner runner(model);
  for (const json& c : golden["cases"]) {
    SCOPED_TRACE(c["text"].get<std::string>());
    const auto prompt = c["prompt_ids"].get<Ids>();
    const auto rows = runner.logits(prompt);
    const auto ids = c["last_top20_ids"].get<Ids>();
    const auto values = c["last_top20_logits"].get<std::vector<double>>();
    ASSERT_EQ(ids.size(), 20U);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_NEAR(rows.back()[static_cast<std::size_t>(ids[i])], values[i], kLogitTolerance)
          << "id " << ids[i];
    }
    double nll = 0;
    for (std::size_t t = 1; t < prompt.size(); ++t)
      nll += negative_log_likelihood(rows[t - 1], prompt[t]);
    EXPECT_NEAR(nll, c["prompt_nll"].get<double>(),
                kLogitTolerance * static_cast<double>(prompt.size()));
  }
}

void expect_perplexity(const std::filesystem::path& model, const std::filesystem::path& ids,
                       const json& golden) {
#ifdef FUT_SANITIZED
  GTEST_SKIP() << "scores 16,384 tokens: too slow under sanitizers, run in the release build";
#endif
  ModelRunner runner(model);
  const json& heldout = golden["heldout"];
  const double expected = heldout["ppl"].get<double>();
  const double found = runner.perplexity(read_windows(ids, heldout["windows"].get<std::size_t>(),
                                                      heldout["length"].get<std::size_t>()));
  EXPECT_NEAR(found / expected, 1.0, kPerplexityTolerance) << found << " for " << expected;
  testing::Test::RecordProperty("perplexity", std::to_string(found));
}

std::filesystem::path demo() {
  return source_path("configs/demo-6m");
}
json demo_golden() {
  return read_json(source_path("tests/golden/demo-6m/golden.json"));
}

TEST(DemoModel, GreedyIdsAreTransformers) {
  expect_greedy(demo(), demo_golden());
}
TEST(DemoModel, LastLogitsAreTransformers) {
  expect_last_logits(demo(), demo_golden());
}
TEST(DemoModel, HeldOutPerplexityIsTransformers) {
  expect_perplexity(demo(), source_path("tests/golden/demo-6m/heldout_ids.bin"), demo_golden());
}

TEST(NovelsModel, GreedyIdsAreTransformers) {
  const auto model = test_data("models/novels-19m");
  FUT_REQUIRE_TEST_DATA(model);
  expect_greedy(model, read_json(model / "golden.json"));
}
TEST(NovelsModel, LastLogitsAreTransformers) {
  const auto model = test_data("models/novels-19m");
  FUT_REQUIRE_TEST_DATA(model);
  expect_last_logits(model, read_json(model / "golden.json"));
}
TEST(NovelsModel, HeldOutPerplexityIsTransformers) {
  const auto model = test_data("models/novels-19m");
  FUT_REQUIRE_TEST_DATA(model);
  expect_perplexity(model, model / "heldout_ids.bin", read_json(model / "golden.json"));
}

TEST(TinyStoriesModel, GreedyIdsAndLogitsAreTheFloat64Reference) {
  const auto model = test_data("models/tinystories-656k");
  FUT_REQUIRE_TEST_DATA(model);
  const json golden = read_json(model / "golden_f64.json");
  ModelRunner runner(model);
  const auto prompt = golden["ids"].get<Ids>();
  const auto expected = golden["greedy_ids"].get<Ids>();
  ASSERT_EQ(expected.size(), 120U);
  EXPECT_EQ(runner.greedy(prompt, 120, {}), expected);
  const auto logits = runner.logits(prompt).back();
  const auto values = golden["last_logits_f64"].get<std::vector<double>>();
  ASSERT_EQ(values.size(), logits.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(logits[i], values[i], kLogitTolerance) << "id " << i;
}

}  // namespace
}  // namespace fut::test
