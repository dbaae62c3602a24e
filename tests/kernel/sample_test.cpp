// sample on both backends: every stage alone and in its order, ties, faults, extreme values, and the
// draw itself against a plain sort.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "kernels/error.h"
#include "kernels/numeric/philox.h"
#include "tests/support/sample_rows.h"

namespace fut::test {
namespace {

using Row = SampleRow;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// On the CPU in its first setup, and on the GPU.
class Sample : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!GetParam()) return;
    FUT_REQUIRE_GPU_DEVICE();
    gpu_ = gpu_backend();
  }
  std::int32_t one(const Row& row) { return sample_rows(backend(), {row})[0]; }
  std::int32_t one(std::vector<float> logits, const SampleParams& params, std::uint64_t draw = 0,
                   std::vector<std::int32_t> history = {}) {
    return one(Row{std::move(logits), params, draw, std::move(history)});
  }
  // How often each id is drawn.
  std::vector<int> counts(const std::vector<float>& logits, const SampleParams& params,
                          int num_draws, const std::vector<std::int32_t>& history = {}) {
    std::vector<Row> rows;
    for (int i = 0; i < num_draws; ++i) {
      rows.push_back({logits, params, static_cast<std::uint64_t>(i), history});
    }
    std::vector<int> result(logits.size());
    for (const std::int32_t id : sample_rows(backend(), rows)) {
      ++result.at(static_cast<std::size_t>(id));
    }
    return result;
  }
  Backend& backend() { return GetParam() ? *gpu_ : *setups_.front().backend; }

  std::vector<CpuSetup> setups_ = cpu_setups();
  std::unique_ptr<Backend> gpu_;
};

SampleParams greedy() {
  SampleParams p;
  p.temperature = 0;
  return p;
}

TEST_P(Sample, GreedyTakesTheLargestAndTheLowerIdOfEquals) {
  EXPECT_EQ(one({1, 5, 3}, greedy()), 1);
  EXPECT_EQ(one({-3, -1, -1, -2}, greedy()), 1);
  EXPECT_EQ(one({2}, greedy()), 0);
  SampleParams p;
  for (const float temperature : {1e-30F, 1e-6F, kGreedyTemperature}) {
    p.temperature = temperature;
    EXPECT_EQ(one({4, 7, 7, 1}, p), 1) << temperature;
  }
}

TEST_P(Sample, RowsThatAreNotFiniteGiveNoToken) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const SampleParams& p : {greedy(), SampleParams{}}) {
    EXPECT_EQ(one({1, nan, 3}, p), kNoToken);
    EXPECT_EQ(one({nan, nan, nan}, p), kNoToken);
    EXPECT_EQ(one({1, kInfinity, 3}, p), kNoToken);
    EXPECT_EQ(one({-kInfinity, -kInfinity}, p), kNoToken);
  }
  // The row beside a faulty one is drawn as ever.
  EXPECT_EQ(sample_rows(backend(), {{{1, nan}, greedy(), 0, {}}, {{1, 2}, greedy(), 0, {}}}),
            (std::vector<std::int32_t>{kNoToken, 1}));
}

TEST_P(Sample, ALogitOfMinusInfinityIsNeverDrawn) {
  SampleParams p;
  p.temperature = 1e30F;
  const std::vector<int> seen = counts({-kInfinity, 1, -kInfinity, 2}, p, 200);
  EXPECT_EQ(seen[0] + seen[2], 0);
  EXPECT_GT(seen[1], 0);
  EXPECT_GT(seen[3], 0);
}

TEST_P(Sample, FiltersAtTheirNarrowestAreGreedy) {
  const std::vector<float> logits = {1, 4, 4, 3.99F, -2};
  for (const bool temperature_first : {false, true}) {
    for (const float temperature : {0.7F, 1.0F, 1e30F}) {
      SampleParams top_k;
      top_k.top_k = 1;
      SampleParams top_p;
      top_p.top_p = 1e-9F;
      SampleParams min_p;
      min_p.min_p = 1;
      for (SampleParams p : {top_k, top_p, min_p}) {
        p.temperature = temperature;
        p.temperature_first = temperature_first;
        for (std::uint64_t draw = 0; draw < 50; ++draw) EXPECT_EQ(one(logits, p, draw), 1);
      }
    }
  }
}

TEST_P(Sample, TopKBeyondTheVocabularyIsOff) {
  const std::vector<float> logits = {0.5F, 0, 1, 0.25F};
  for (const int top_k : {0, -1, 4, 5, 1000000}) {
    SampleParams p;
    p.top_k = top_k;
    EXPECT_EQ(counts(logits, p, 100), counts(logits, SampleParams{}, 100)) << top_k;
  }
}

TEST_P(Sample, TopKKeepsTheBestAndTheLowerIdOfEquals) {
  SampleParams p;
  p.top_k = 2;
  p.temperature = 1e30F;
  const std::vector<int> seen = counts({1, 2, 5, 2, 2}, p, 200);
  EXPECT_GT(seen[1], 0);
  EXPECT_GT(seen[2], 0);
  EXPECT_EQ(seen[0] + seen[3] + seen[4], 0);
}

std::vector<float> logs(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

TEST_P(Sample, TopPKeepsTheShortestRunThatReachesIt) {
  SampleParams p;
  p.temperature = 1e30F;
  p.top_p = 0.69F;
  const std::vector<float> logits = logs({0.1, 0.5, 0.1, 0.2, 0.1});
  std::vector<int> seen = counts(logits, p, 200);
  EXPECT_GT(seen[1], 0);
  EXPECT_GT(seen[3], 0);
  EXPECT_EQ(seen[0] + seen[2] + seen[4], 0);
  p.top_p = 0.71F;  // one of the three equal ones more: the lowest id
  seen = counts(logits, p, 200);
  EXPECT_GT(seen[0], 0);
  EXPECT_EQ(seen[2] + seen[4], 0);
}

TEST_P(Sample, MinPIsAShareOfTheLargestProbability) {
  SampleParams p;
  p.temperature = 1e30F;
  p.min_p = 0.3F;
  const std::vector<int> seen = counts(logs({0.14, 0.5, 0.16, 0.2}), p, 200);
  EXPECT_EQ(seen[0], 0);  // 0.28 of the largest
  EXPECT_GT(seen[2], 0);  // 0.32
  EXPECT_GT(seen[3], 0);
}

// Flat logits: after a high temperature top-p keeps nearly all, before it only the best.
TEST_P(Sample, TemperatureComesLastUnlessAskedForFirst) {
  const std::vector<float> logits = logs({0.6, 0.2, 0.1, 0.1});
  SampleParams p;
  p.temperature = 1e30F;
  p.top_p = 0.5F;
  EXPECT_EQ(counts(logits, p, 100)[0], 100);
  p.temperature_first = true;
  const std::vector<int> seen = counts(logits, p, 100);
  EXPECT_GT(seen[0], 0);
  EXPECT_GT(seen[1], 0);
  EXPECT_EQ(seen[2] + seen[3], 0);
}

TEST_P(Sample, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  SampleParams p = greedy();
  p.repetition_penalty = 2;
  EXPECT_EQ(one({4, 3, 1}, p, 0, {0}), 1);           // 4 -> 2
  EXPECT_EQ(one({4, 1.5F, 1}, p, 0, {0}), 0);        // 2 is still the largest
  EXPECT_EQ(one({-1, -1.5F, -9}, p, 0, {0}), 1);     // -1 -> -2
  EXPECT_EQ(one({-1, -2.5F, -9}, p, 0, {0, 0}), 0);  // once, however often it was seen
  p.repetition_penalty = 0.5F;
  EXPECT_EQ(one({4, 3, 1}, p, 0, {1}), 1);  // 3 -> 6
}

TEST_P(Sample, PresencePenaltyCountsOnceFrequencyPenaltyEachTime) {
  SampleParams presence = greedy();
  presence.presence_penalty = 1;
  EXPECT_EQ(one({4, 3.5F, 0}, presence, 0, {0}), 1);
  EXPECT_EQ(one({4, 2.5F, 0}, presence, 0, {0, 0, 0}), 0);
  SampleParams frequency = greedy();
  frequency.frequency_penalty = 1;
  EXPECT_EQ(one({4, 2.5F, 0}, frequency, 0, {0}), 0);
  EXPECT_EQ(one({4, 2.5F, 0}, frequency, 0, {0, 2, 0}), 1);
  SampleParams both = greedy();  // repetition first: 4 / 2 - 1 = 1
  both.repetition_penalty = 2;
  both.presence_penalty = 1;
  EXPECT_EQ(one({4, 0.75F, 1.25F}, both, 0, {0}), 2);
}

TEST_P(Sample, PenaltiesLookAtTheHistoryOfTheirOwnRow) {
  SampleParams p = greedy();
  p.presence_penalty = 10;
  const std::vector<float> logits = {3, 2, 1};
  EXPECT_EQ(sample_rows(backend(), {{logits, p, 0, {0}},
                                    {logits, p, 0, {}},
                                    {logits, p, 0, {0, 1}},
                                    {logits, greedy(), 0, {0, 1}}}),
            (std::vector<std::int32_t>{1, 0, 2, 0}));
}

TEST_P(Sample, ExtremeValuesAlwaysLeaveACandidate) {
  constexpr float kMax = std::numeric_limits<float>::max();
  const std::vector<std::vector<float>> rows = {{1, 2, 3, 4},
                                                {kMax, -kMax, 0, kMax},
                                                {-kMax, -kMax, -kMax, -kMax},
                                                {0, 0, 0, 0},
                                                {1e-45F, 0, -1e-45F, 0}};
  for (const std::vector<float>& logits : rows) {
    for (const float temperature : {0.0F, 1.1e-5F, 1.0F, 1e30F, kMax}) {
      for (const float top_p : {1e-9F, 1.0F}) {
        for (const float min_p : {0.0F, 1e-9F, 1.0F}) {
          for (const float repetition : {1e-30F, 1.0F, 1e30F}) {
            for (const float presence : {-kMax, 0.0F, kMax}) {
              for (const bool first : {false, true}) {
                const SampleParams p = {temperature, 3,        top_p, min_p, repetition,
                                        presence,    presence, first, 1};
                const std::int32_t id = one(logits, p, 3, {0, 1, 2, 3, 3});
                ASSERT_GE(id, 0);
                ASSERT_LT(id, 4);
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(Sample, HighTemperatureIsUniform) {
  SampleParams p;
  p.temperature = 1e30F;
  constexpr int kDraws = 4000;
  const std::vector<int> seen = counts({9, -3, 0, 100}, p, kDraws);
  const double deviation = std::sqrt(kDraws * 0.25 * 0.75);
  for (const int count : seen) EXPECT_NEAR(count, kDraws / 4, 6 * deviation);
}

TEST_P(Sample, DrawsEachIdAsOftenAsItsProbabilitySays) {
  const std::vector<double> probabilities = {0.05, 0.4, 0.15, 0.3, 0.1};
  constexpr int kDraws = 20000;
  const std::vector<int> seen = counts(logs(probabilities), SampleParams{}, kDraws);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double deviation = std::sqrt(kDraws * probabilities[i] * (1 - probabilities[i]));
    EXPECT_NEAR(seen[i], kDraws * probabilities[i], 6 * deviation) << i;
  }
}

// The contract in its own words: sort, add up, take the first that passes u.
std::int32_t plain_draw(const std::vector<float>& logits, double temperature, float uniform) {
  std::vector<std::int32_t> ids(logits.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(ids.begin(), ids.end(),
                   [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
  const double best = logit(ids[0]);
  double total = 0;
  for (const float l : logits) total += std::exp((l - best) / temperature);
  double sum = 0;
  for (const std::int32_t id : ids) {
    sum += std::exp((logit(id) - best) / temperature);
    if (sum > uniform * total) return id;
  }
  return ids.back();
}

TEST_P(Sample, DrawIsThePhiloxNumberOverFallingProbabilities) {
  SampleParams p;
  for (std::uint64_t draw = 0; draw < 300; ++draw) {
    const std::vector<float> logits = normal_values(500, static_cast<std::uint32_t>(draw), 2.0F);
    p.seed = draw * 0x100000001ULL;
    p.temperature = 0.5F + static_cast<float>(draw % 5) / 2;
    EXPECT_EQ(one(logits, p, draw), plain_draw(logits, p.temperature, philox_uniform(p.seed, draw)))
        << draw;
  }
}

TEST_P(Sample, GivesTheSameIdsOnEverySetupAndInEveryCompany) {
  std::vector<Row> rows;
  for (std::uint32_t i = 0; i < 40; ++i) {
    SampleParams p;
    p.temperature = static_cast<float>(i % 4) / 2;
    p.top_k = static_cast<int>(i % 3) * 20;
    p.top_p = i % 2 == 0 ? 0.9F : 1.0F;
    p.seed = i;
    rows.push_back({normal_values(1000, i, 3.0F), p, i, {1, 2, 3}});
  }
  const std::vector<std::int32_t> first = sample_rows(backend(), rows);
  for (const CpuSetup& setup : setups_) {
    EXPECT_EQ(first, sample_rows(*setup.backend, rows)) << setup.name;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(first[i], one(rows[i])) << i;
}

TEST_P(Sample, RefusesParametersOutsideTheirRangesAndStrangeIds) {
  if (GetParam()) GTEST_SKIP() << "arrays of the device are the caller's promise";
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<void (*)(SampleParams&)> changes = {
      [](SampleParams& p) { p.temperature = -1; },
      [](SampleParams& p) { p.top_p = 0; },
      [](SampleParams& p) { p.top_p = 1.5F; },
      [](SampleParams& p) { p.min_p = -0.1F; },
      [](SampleParams& p) { p.min_p = 1.1F; },
      [](SampleParams& p) { p.repetition_penalty = 0; },
      [](SampleParams& p) { p.presence_penalty = kInfinity; },
  };
  for (const auto change : changes) {
    SampleParams p;
    change(p);
    EXPECT_THROW(one({1, 2}, p), Error);
  }
  SampleParams p;
  p.temperature = nan;
  EXPECT_THROW(one({1, 2}, p), Error);
  EXPECT_THROW(one({1, 2}, SampleParams{}, 0, {2}), Error);
  EXPECT_THROW(one({1, 2}, SampleParams{}, 0, {-1}), Error);
}

INSTANTIATE_TEST_SUITE_P(Backends, Sample, testing::Bool(),
                         [](const auto& backend) { return backend.param ? "Gpu" : "Cpu"; });

}  // namespace
}  // namespace fut::test
