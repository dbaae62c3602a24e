// A reply never depends on what else runs: not on its neighbours, not on the number of threads, not
// on how the engine cuts prompts into passes. Bit for bit, on the demonstration model.
#include <cstring>
#include <gtest/gtest.h>
#include <map>

#include "tests/support/model_runner.h"
#include "tests/support/test_data.h"

namespace fut::test {
namespace {

using Ids = std::vector<std::int32_t>;

struct Reply {
  Ids ids;
  std::vector<float> logprobs;
  bool operator==(const Reply&) const = default;
};

Ids prompt(int tokens, int salt) {
  Ids ids{4088};
  for (int i = 1; i < tokens; ++i) ids.push_back((i * 37 + salt * 101) % 4088);
  return ids;
}

Request request(const Ids& ids) {
  Request r;
  r.prompt = ids;
  r.max_new_tokens = 12;
  r.num_logprobs = 1;
  r.sampling.sample.temperature = 0.8F;
  r.sampling.sample.seed = 5;
  return r;
}

// Runs all prompts at once and returns each reply in order.
std::vector<Reply> run(ModelRunner& runner, const std::vector<Ids>& prompts,
                       EngineOptions options) {
  options.max_sequences = static_cast<int>(prompts.size());
  Engine engine(runner.backend(), runner.load_model(), options);
  std::map<SequenceId, Reply> replies;
  for (const Ids& ids : prompts) replies[engine.submit(request(ids))] = {};
  while (!engine.idle()) {
    for (const TokenEvent& event : engine.step()) {
      replies[event.sequence].ids.push_back(event.token);
      replies[event.sequence].logprobs.push_back(event.logprob);
    }
  }
  std::vector<Reply> in_order;
  for (auto& [id, reply] : replies) in_order.push_back(std::move(reply));
  return in_order;
}

std::filesystem::path demo() {
  return source_path("configs/demo-6m");
}

TEST(BatchIndependence, AloneOrAmongOthersTheBitsAreTheSame) {
  ModelRunner runner(demo());
  const std::vector<Ids> prompts{prompt(1, 1), prompt(63, 2), prompt(64, 3), prompt(65, 4),
                                 prompt(200, 5)};
  const auto together = run(runner, prompts, {});
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(run(runner, {prompts[i]}, {})[0], together[i]);
    EXPECT_EQ(together[i].ids.size(), 12U);
  }
}

TEST(BatchIndependence, ThreadCountsGiveTheSameBits) {
  const std::vector<Ids> prompts{prompt(40, 1), prompt(130, 2)};
  ModelRunner one(demo(), {.threads = 1});
  const auto expected = run(one, prompts, {});
  for (const int threads : {2, 3, 7}) {
    ModelRunner runner(demo(), {.threads = threads});
    EXPECT_EQ(run(runner, prompts, {}), expected) << threads << " threads";
  }
}

TEST(BatchIndependence, WholeOrInPassesTheBitsAreTheSame) {
  ModelRunner runner(demo());
  EngineOptions whole;
  whole.prefill_chunk = 512;
  EngineOptions cut;
  cut.prefill_chunk = 64;
  const std::vector<Ids> prompts{prompt(300, 9)};
  EXPECT_EQ(run(runner, prompts, cut), run(runner, prompts, whole));
}

TEST(BatchIndependence, DecodingTokenByTokenIsOnePassOverAll) {
  ModelRunner runner(demo());
  const Ids ids = prompt(20, 3);
  const Ids reply = runner.greedy(ids, 30, {});
  Ids all = ids;
  all.insert(all.end(), reply.begin(), reply.end());
  const auto rows = runner.logits(all);
  for (std::size_t i = 0; i < reply.size(); ++i) {
    const auto& row = rows[ids.size() - 1 + i];
    EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), reply[i]) << "token " << i;
  }
}

}  // namespace
}  // namespace fut::test
