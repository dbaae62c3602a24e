// sample on the GPU against the CPU: the same token for random logits and random parameters, at
// vocabularies up to Llama's. A token may differ where a stage's border lies closer to its target than
// both sides' rounding; such cases are counted, and there should be none.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/numeric/philox.h"
#include "tests/support/sample_rows.h"

namespace fut::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(std::mt19937& random, std::size_t vocabulary) {
  constexpr float kDeviations[] = {0.01F, 1, 3, 8, 1e30F};
  std::normal_distribution<float> normal(0, kDeviations[random() % 5]);
  std::vector<float> logits(vocabulary);
  switch (random() % 8) {
    case 0:  // all equal
      std::fill(logits.begin(), logits.end(), normal(random));
      break;
    case 1:  // many equal ones
      for (float& l : logits) l = std::round(static_cast<float>(random() % 1024) / 64.0F);
      break;
    case 2:  // some without probability
      for (float& l : logits) l = random() % 4 == 0 ? -kInfinity : normal(random);
      logits[random() % vocabulary] = 1;
      break;
    case 3:  // few above many
      for (float& l : logits) l = normal(random);
      for (int i = 0; i < 20; ++i) {
        logits[random() % vocabulary] += 12 + static_cast<float>(random() % 64) / 16;
      }
      break;
    default:
      for (float& l : logits) l = normal(random);
  }
  return logits;
}

template <class T, std::size_t kCount>
T any_of(std::mt19937& random, const T (&values)[kCount]) {
  return values[random() % kCount];
}

SampleRow random_row(std::mt19937& random, std::size_t vocabulary) {
  SampleRow row;
  row.logits = random_logits(random, vocabulary);
  SampleParams& p = row.params;
  p.temperature = any_of(random, {0.0F, 1e-4F, 0.3F, 0.7F, 0.7F, 1.0F, 1.5F, 10.0F, 1e30F});
  p.top_k = any_of(random, {0, 0, 0, 1, 5, 40, 1000, 3000, static_cast<int>(vocabulary) / 2});
  p.top_p = any_of(random, {1e-6F, 0.3F, 0.9F, 0.95F, 0.999F, 1.0F, 1.0F});
  p.min_p = any_of(random, {0.0F, 0.0F, 0.0F, 0.001F, 0.05F, 0.5F, 1.0F});
  p.temperature_first = random() % 3 == 0;
  p.seed = (static_cast<std::uint64_t>(random()) << 32) | random();
  row.draw_index = random();
  if (random() % 3 == 0) {
    p.repetition_penalty = any_of(random, {0.8F, 1.0F, 1.1F, 1.3F});
    p.presence_penalty = any_of(random, {-0.5F, 0.0F, 0.3F});
    p.frequency_penalty = any_of(random, {0.0F, 0.1F, 0.7F});
    const std::size_t range = random() % 2 == 0 ? vocabulary : std::min<std::size_t>(vocabulary, 9);
    for (std::size_t i = random() % 3000; i > 0; --i) {
      row.history.push_back(static_cast<std::int32_t>(random() % range));
    }
  }
  return row;
}

// The contract once more, for logits without penalties: sorted and summed in long double, with the
// targets of top-p and of the draw moved by a share of the total and min-p by one of itself.
std::int32_t moved_token(const SampleRow& row, long double by) {
  const SampleParams& p = row.params;
  const auto logit = [&](std::int32_t id) { return row.logits[static_cast<std::size_t>(id)]; };
  std::vector<std::int32_t> ids(row.logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::erase_if(ids, [&](std::int32_t id) { return !std::isfinite(logit(id)); });
  std::stable_sort(ids.begin(), ids.end(),
                   [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
  if (p.top_k > 0 && static_cast<std::size_t>(p.top_k) < ids.size()) {
    ids.resize(static_cast<std::size_t>(p.top_k));
  }
  const long double best = logit(ids[0]);
  const auto weight = [&](std::int32_t id, long double t) {
    return std::exp((static_cast<long double>(logit(id)) - best) / t);
  };
  const auto total = [&](long double t) {
    long double sum = 0;
    for (const std::int32_t id : ids) sum += weight(id, t);
    return sum;
  };
  // How many are needed for a sum.
  const auto reach = [&](long double t, long double wanted) {
    long double sum = 0;
    std::size_t i = 0;
    while (i < ids.size() && sum < wanted) sum += weight(ids[i++], t);
    return std::max<std::size_t>(i, 1);
  };
  const long double filter = p.temperature_first ? p.temperature : 1.0F;
  if (p.top_p < 1) ids.resize(reach(filter, (p.top_p + by) * total(filter)));
  if (p.min_p > 0) {
    while (ids.size() > 1 && weight(ids.back(), filter) < p.min_p * (1 + by)) ids.pop_back();
  }
  const long double uniform = philox_uniform(p.seed, row.draw_index);
  // More than that much: the least there is above it.
  const long double wanted = (uniform + by) * total(p.temperature);
  return ids[reach(p.temperature, std::nextafter(wanted, 2 * wanted + 1)) - 1];
}

// Whether rounding may decide. A weight of the GPU is off by 2^-47 of the largest, and so of the
// total, at most (2^17 ids; more bits with fewer ids), one of the CPU and its sum by V * 2^-52.
bool lies_at_a_border(const SampleRow& row) {
  if (row.params.temperature <= kGreedyTemperature || !row.history.empty()) return false;
  const auto vocabulary = static_cast<long double>(row.logits.size());
  const long double bound = 2 * vocabulary * (0x1p-47L + 0x1p-52L);
  const std::int32_t low = moved_token(row, -bound);
  return low != moved_token(row, bound) || low != moved_token(row, 0);
}

std::string described(const SampleRow& row) {
  const SampleParams& p = row.params;
  return "temperature " + std::to_string(p.temperature) + ", top_k " + std::to_string(p.top_k) +
         ", top_p " + std::to_string(p.top_p) + ", min_p " + std::to_string(p.min_p) + ", first " +
         std::to_string(p.temperature_first) + ", history " + std::to_string(row.history.size());
}

// Draws in calls of `rows` rows.
void expect_tokens_of_the_cpu(std::size_t vocabulary, int calls, int rows, std::uint32_t seed) {
  const std::unique_ptr<Backend> gpu = gpu_backend();
  std::string notice;
  const std::unique_ptr<Backend> cpu = make_backend({.kind = DeviceRequest::Kind::Cpu}, notice);
  std::mt19937 random(seed);
  int at_border = 0;
  int wrong = 0;
  for (int call = 0; call < calls; ++call) {
    std::vector<SampleRow> batch;
    for (int i = 0; i < rows; ++i) batch.push_back(random_row(random, vocabulary));
    const std::vector<std::int32_t> expected = sample_rows(*cpu, batch);
    const std::vector<std::int32_t> actual = sample_rows(*gpu, batch);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (actual[i] == expected[i]) continue;
      if (lies_at_a_border(batch[i])) {
        ++at_border;
      } else if (++wrong <= 5) {
        ADD_FAILURE() << "token " << actual[i] << ", the CPU's is " << expected[i] << "; call "
                      << call << ", row " << i << ", " << described(batch[i]);
      }
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(at_border, 0);
}

TEST(SampleCuda, TakesTheTokensOfTheCpuOf5Ids) {
  FUT_REQUIRE_GPU_DEVICE();
  expect_tokens_of_the_cpu(5, 10, 1000, 1);
}
TEST(SampleCuda, TakesTheTokensOfTheCpuOf512Ids) {
  FUT_REQUIRE_GPU_DEVICE();
  expect_tokens_of_the_cpu(512, 70, 100, 2);
}
TEST(SampleCuda, TakesTheTokensOfTheCpuOf32000Ids) {
  FUT_REQUIRE_GPU_DEVICE();
  expect_tokens_of_the_cpu(32000, 78, 32, 3);
}
TEST(SampleCuda, TakesTheTokensOfTheCpuOf128256Ids) {
  FUT_REQUIRE_GPU_DEVICE();
  expect_tokens_of_the_cpu(128256, 17, 32, 4);
}

TEST(SampleCuda, FaultsInTheLastIdsAreSeen) {
  FUT_REQUIRE_GPU_DEVICE();
  const std::unique_ptr<Backend> gpu = gpu_backend();
  std::vector<SampleRow> rows;
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const float temperature : {0.0F, 1.0F}) {
      for (const std::size_t place : {0U, 70001U, 128255U}) {
        SampleRow row;
        row.logits.assign(128256, -1);
        row.logits[3] = 40;
        row.logits[place] = value;
        row.params.temperature = temperature;
        rows.push_back(row);
      }
    }
  }
  const std::vector<std::int32_t> ids = sample_rows(*gpu, rows);
  for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(ids[i], i < 12 ? kNoToken : 3) << i;
}

TEST(SampleCuda, ARowIsTheSameInEveryCompanyAndEachTime) {
  FUT_REQUIRE_GPU_DEVICE();
  const std::unique_ptr<Backend> gpu = gpu_backend();
  std::mt19937 random(5);
  std::vector<SampleRow> rows;
  for (int i = 0; i < 32; ++i) rows.push_back(random_row(random, 128256));
  const std::vector<std::int32_t> all = sample_rows(*gpu, rows);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(sample_rows(*gpu, rows), all);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(sample_rows(*gpu, {rows[i]})[0], all[i]) << i;
  }
}

}  // namespace
}  // namespace fut::test
