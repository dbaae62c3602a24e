// Prompts of mixed lengths in one pass: each token's logits are the same bits alone, among others, and
// cut into passes at the same borders; a conversation goes on from what its last turn left. On the CPU in
// every precision, on the GPU in those that it has.
#include <gtest/gtest.h>
#include <map>

#include "engine/engine.h"
#include "engine/forward.h"
#include "tests/support/backends.h"
#include "tests/support/model_runner.h"
#include "tests/support/quantized_folder.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace fut::test {
namespace {

using Ids = std::vector<std::int32_t>;
using Rows = std::vector<float>;  // of one prompt, token after token

constexpr int kLengths[] = {1, 17, 63, 130, 64, 333, 15};
constexpr int kMostTokens = 640;

Ids prompt(int tokens, int salt) {
  Ids ids{4088};
  for (int i = 1; i < tokens; ++i) ids.push_back((i * 37 + salt * 101) % 4088);
  return ids;
}

std::vector<Ids> mixed_prompts() {
  std::vector<Ids> prompts;
  for (const int length : kLengths) prompts.push_back(prompt(length, length));
  return prompts;
}

struct Setup {
  Precision precision;
  KvCacheDtype cache;
  bool gpu;
  PrefillWeights prefill = PrefillWeights::Fp8;
};

std::string name_of(const testing::TestParamInfo<Setup>& info) {
  const Setup& s = info.param;
  return std::string(precision_name(s.precision)) + "_" +
         std::string(kv_cache_dtype_name(s.cache)) +
         (s.prefill == PrefillWeights::Int4 ? "_expanded" : "") + (s.gpu ? "_Gpu" : "_Cpu");
}

class PromptPacks : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    if (GetParam().gpu) FUT_REQUIRE_GPU_DEVICE();
    std::filesystem::path model = source_path("configs/demo-6m");
    if (is_quantized(GetParam().precision)) {
      quantize_for_test(model, folder_ / "packed", {});
      model = folder_ / "packed";
    }
    RunnerOptions options;
    options.precision = GetParam().precision;
    options.kv_cache = cache_of(GetParam().cache);
    options.gpu = GetParam().gpu;
    options.prefill = GetParam().prefill;
    runner_ = std::make_unique<ModelRunner>(model, options);
    model_ = std::make_unique<Model>(runner_->load_model());
  }

  // The logits of every token of `prompts`, which wait at the same time.
  [[nodiscard]] std::vector<Rows> run(const std::vector<Ids>& prompts, int chunk, int step_tokens) {
    SchedulerLimits limits;
    limits.context_tokens = kMostTokens;
    limits.max_sequences = static_cast<int>(prompts.size());
    limits.prefill_chunk = chunk;
    limits.max_prefill_tokens = step_tokens;
    limits.num_pages =
        static_cast<int>(layout::pages_for_tokens(kMostTokens)) * limits.max_sequences;
    Scheduler scheduler(limits);
    Backend& backend = runner_->backend();
    KvCache cache(backend, runner_->config(), runner_->kv_cache(), limits.num_pages,
                  limits.max_sequences);
    Workspace workspace(
        backend, runner_->config(), GetParam().precision, runner_->kv_cache().dtype,
        {step_tokens, limits.max_sequences, step_tokens, limits.num_pages, kMostTokens});
    std::map<SequenceId, Rows> rows;
    for (const Ids& ids : prompts) rows[scheduler.submit(ids, 1, {})] = {};
    num_passes_ = 0;
    while (!scheduler.idle()) {
      const Batch batch = scheduler.next_batch();
      Batch all = batch;
      all.logit_rows.resize(all.token_ids.size());
      for (std::size_t i = 0; i < all.logit_rows.size(); ++i) {
        all.logit_rows[i] = static_cast<std::int32_t>(i);
      }
      workspace.upload(backend, all);
      forward(backend, *model_, cache, workspace);
      take_rows(workspace.logits(), batch, rows);
      scheduler.commit(batch, Ids(batch.logit_sequences.size(), 0));
      ++num_passes_;
    }
    std::vector<Rows> in_order;
    for (auto& [id, logits] : rows) in_order.push_back(std::move(logits));
    return in_order;
  }

  void take_rows(const MatrixView<float>& logits, const Batch& batch,
                 std::map<SequenceId, Rows>& rows) {
    for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
      Rows& of_prompt = rows.at(batch.sequences[s]);
      const std::size_t first = of_prompt.size();
      const std::int64_t count = batch.q_indptr[s + 1] - batch.q_indptr[s];
      of_prompt.resize(first + static_cast<std::size_t>(count * logits.cols));
      runner_->backend().download(std::as_writable_bytes(std::span(of_prompt).subspan(first)),
                                  logits.row(batch.q_indptr[s]));
    }
  }

  [[nodiscard]] std::vector<Rows> alone(const std::vector<Ids>& prompts, int chunk) {
    std::vector<Rows> rows;
    for (const Ids& ids : prompts) rows.push_back(run({ids}, chunk, chunk)[0]);
    return rows;
  }

  TempFolder folder_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<Model> model_;
  int num_passes_ = 0;
};

TEST_P(PromptPacks, AloneOrInPacksTheLogitsAreTheSameBits) {
  const std::vector<Ids> prompts = mixed_prompts();
  const std::vector<Rows> expected = alone(prompts, kMostTokens);
  EXPECT_EQ(run(prompts, kMostTokens, kMostTokens), expected);
  EXPECT_EQ(num_passes_, 1);
  // Other neighbours, and a pack that is full before all are in.
  std::vector<Ids> twice(prompts.rbegin(), prompts.rend());
  twice.insert(twice.end(), prompts.begin(), prompts.end());
  const std::vector<Rows> rows = run(twice, kMostTokens, kMostTokens);
  EXPECT_EQ(num_passes_, 2);
  EXPECT_EQ(std::vector<Rows>(rows.begin() + std::ssize(prompts), rows.end()), expected);
  EXPECT_EQ(std::vector<Rows>(rows.rend() - std::ssize(prompts), rows.rend()), expected);
}

TEST_P(PromptPacks, CutAtTheSameBordersTheLogitsAreTheSameBits) {
  const std::vector<Ids> prompts = mixed_prompts();
  const std::vector<Rows> expected = alone(prompts, 64);
  for (const int step_tokens : {64, 192, kMostTokens}) {
    EXPECT_EQ(run(prompts, 64, step_tokens), expected) << step_tokens;
  }
  if (GetParam().cache != KvCacheDtype::Int4 && !GetParam().gpu) {
    // A cache that rounds no more than a pass does makes nothing of where passes end, where sums run
    // key by key.
    EXPECT_EQ(alone(prompts, kMostTokens), expected);
  }
}

TEST_P(PromptPacks, WhoIsCancelledBetweenPassesLeavesTheOthersTheirBits) {
  EngineOptions options;
  options.context_tokens = kMostTokens;
  options.kv_cache = runner_->kv_cache();
  options.max_sequences = 3;
  options.prefill_chunk = 64;
  options.pass_tokens = 192;
  Engine engine(runner_->backend(), runner_->load_model(), options);
  const auto reply = [&](bool in_company) {
    std::vector<SequenceId> others;
    const auto submit = [&](int tokens) {
      Request request;
      request.prompt = prompt(tokens, tokens);
      request.max_new_tokens = 4;
      request.num_logprobs = 1;
      return engine.submit(request);
    };
    if (in_company) others = {submit(333), submit(300)};
    const SequenceId id = submit(200);
    std::vector<float> logprobs;
    for (int step = 0; !engine.idle(); ++step) {
      for (const TokenEvent& event : engine.step()) {
        if (event.sequence == id) logprobs.push_back(event.logprob);
      }
      if (step == 1 && in_company) engine.cancel(others[0]);
      if (step == 2 && in_company) engine.cancel(others[1]);
    }
    return logprobs;
  };
  const std::vector<float> alone = reply(false);
  EXPECT_EQ(alone.size(), 4U);
  EXPECT_EQ(reply(true), alone);
}

// What an engine does with them.
TEST_P(PromptPacks, AConversationComputesWhatIsNewFromTheLastMultipleOfSixteen) {
  EngineOptions options;
  options.context_tokens = kMostTokens;
  options.kv_cache = runner_->kv_cache();
  Engine engine(runner_->backend(), runner_->load_model(), options);
  Ids text;
  int known = 0;
  for (int turn = 0; turn < 3; ++turn) {
    const Ids said = prompt(50 + 13 * turn, turn);
    text.insert(text.end(), said.begin(), said.end());
    Request request;
    request.prompt = text;
    request.max_new_tokens = 21;
    request.sampling.sample.temperature = 0;
    request.of_conversation = true;
    engine.submit(request);
    std::size_t replied = 0;
    while (!engine.idle()) {
      for (const TokenEvent& event : engine.step()) {
        ASSERT_NE(event.token, kNoToken);
        EXPECT_EQ(event.reused_tokens, known);
        text.push_back(event.token);
        ++replied;
      }
    }
    EXPECT_EQ(replied, 21U);
    known = (static_cast<int>(text.size()) - 1) / 16 * 16;
  }
  // Keys are the same bits by either kind of step in float32: so is the last reply.
  if (GetParam().precision != Precision::F32) return;
  Request whole;
  whole.prompt.assign(text.begin(), text.end() - 21);
  whole.max_new_tokens = 21;
  whole.sampling.sample.temperature = 0;
  engine.submit(whole);
  Ids reply;
  while (!engine.idle()) {
    for (const TokenEvent& event : engine.step()) reply.push_back(event.token);
  }
  EXPECT_EQ(reply, Ids(text.end() - 21, text.end()));
}

INSTANTIATE_TEST_SUITE_P(
    All, PromptPacks,
    testing::Values(Setup{Precision::F32, KvCacheDtype::F32, false},
                    Setup{Precision::Bf16, KvCacheDtype::Bf16, false},
                    Setup{Precision::Fp8, KvCacheDtype::Bf16, false},
                    Setup{Precision::Int4, KvCacheDtype::Int4, false},
                    Setup{Precision::Int4, KvCacheDtype::Bf16, false},
                    Setup{Precision::Int4, KvCacheDtype::Int4, false, PrefillWeights::Int4},
                    Setup{Precision::Bf16, KvCacheDtype::Bf16, true},
                    Setup{Precision::Fp8, KvCacheDtype::Bf16, true},
                    Setup{Precision::Int4, KvCacheDtype::Int4, true},
                    Setup{Precision::Int4, KvCacheDtype::Bf16, true},
                    Setup{Precision::Int4, KvCacheDtype::Int4, true, PrefillWeights::Int4}),
    name_of);

}  // namespace
}  // namespace fut::test
