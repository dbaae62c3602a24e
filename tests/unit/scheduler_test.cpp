// The scheduler alone: admission, passes, limits, and thousands of random steps against its
// promises.
#include "engine/scheduler.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <set>

#include "kernels/error.h"
#include "kernels/layout/kv_page.h"

namespace fut {
namespace {

SchedulerLimits small_limits() {
  SchedulerLimits limits;
  limits.context_tokens = 512;
  limits.max_sequences = 4;
  limits.prefill_chunk = 128;
  limits.max_prefill_tokens = 256;
  limits.num_pages = 16;
  return limits;
}

std::vector<std::int32_t> prompt(int num_tokens, int first = 0) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(num_tokens));
  for (int i = 0; i < num_tokens; ++i) ids[static_cast<std::size_t>(i)] = first + i;
  return ids;
}

ErrorKind kind_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::Runtime;
}

// Commits `token` for every sequence whose logits the batch asks for.
std::vector<std::optional<FinishReason>> commit(Scheduler& scheduler, const Batch& batch,
                                                std::int32_t token = 7) {
  return scheduler.commit(batch, std::vector<std::int32_t>(batch.logit_sequences.size(), token));
}

TEST(Scheduler, PrefillsThenDecodesOneTokenAtATime) {
  Scheduler scheduler(small_limits());
  const SequenceId id = scheduler.submit(prompt(3, 40), 2, {});
  Batch batch = scheduler.next_batch();
  EXPECT_EQ(batch.kind, Batch::Kind::Prefill);
  EXPECT_EQ(batch.token_ids, (std::vector<std::int32_t>{40, 41, 42}));
  EXPECT_EQ(batch.positions, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(batch.logit_rows, (std::vector<std::int32_t>{2}));
  EXPECT_EQ(batch.kv_lengths, (std::vector<std::int32_t>{3}));
  EXPECT_FALSE(commit(scheduler, batch)[0]);

  batch = scheduler.next_batch();
  EXPECT_EQ(batch.kind, Batch::Kind::Decode);
  EXPECT_EQ(batch.token_ids, (std::vector<std::int32_t>{7}));
  EXPECT_EQ(batch.positions, (std::vector<std::int32_t>{3}));
  EXPECT_EQ(batch.logit_sequences, (std::vector<SequenceId>{id}));
  EXPECT_EQ(commit(scheduler, batch)[0], FinishReason::Length);
  EXPECT_TRUE(scheduler.idle());
  EXPECT_TRUE(scheduler.next_batch().empty());
  EXPECT_EQ(scheduler.num_free_pages(), 16);
}

TEST(Scheduler, SeveralPromptsShareAStepWithoutPadding) {
  Scheduler scheduler(small_limits());
  scheduler.submit(prompt(5, 10), 1, {});
  scheduler.submit(prompt(70, 100), 1, {});
  const Batch batch = scheduler.next_batch();
  EXPECT_EQ(batch.q_indptr, (std::vector<std::int32_t>{0, 5, 75}));
  EXPECT_EQ(batch.kv_indptr, (std::vector<std::int32_t>{0, 1, 3}));
  EXPECT_EQ(batch.logit_rows, (std::vector<std::int32_t>{4, 74}));
  EXPECT_EQ(batch.positions[5], 0);
}

TEST(Scheduler, LongPromptIsCutAtMultiplesOfTheChunkWhateverElseRuns) {
  for (const bool with_neighbour : {false, true}) {
    Scheduler scheduler(small_limits());
    if (with_neighbour) scheduler.submit(prompt(100), 50, {});
    const SequenceId id = scheduler.submit(prompt(300), 1, {});
    std::vector<int> ends;
    while (ends.empty() || ends.back() < 300) {
      const Batch batch = scheduler.next_batch();
      ASSERT_FALSE(batch.empty());
      const auto at = std::find(batch.sequences.begin(), batch.sequences.end(), id);
      if (at != batch.sequences.end()) {
        ends.push_back(batch.kv_lengths[static_cast<std::size_t>(at - batch.sequences.begin())]);
      }
      commit(scheduler, batch);
    }
    EXPECT_EQ(ends, (std::vector<int>{128, 256, 300}));
  }
}

TEST(Scheduler, APassThatDoesNotEndThePromptHasNoLogits) {
  Scheduler scheduler(small_limits());
  scheduler.submit(prompt(200), 1, {});
  const Batch batch = scheduler.next_batch();
  EXPECT_EQ(batch.token_ids.size(), 128U);
  EXPECT_TRUE(batch.logit_rows.empty());
}

TEST(Scheduler, EndTokenEndsTheSequence) {
  Scheduler scheduler(small_limits());
  scheduler.submit(prompt(3), 10, {99, 7});
  EXPECT_EQ(commit(scheduler, scheduler.next_batch(), 7)[0], FinishReason::Eos);
  EXPECT_TRUE(scheduler.idle());
}

TEST(Scheduler, UnlimitedReplyEndsAtTheContext) {
  Scheduler scheduler(small_limits());
  scheduler.submit(prompt(510), -1, {});
  std::optional<FinishReason> reason;
  int replies = 0;
  while (!scheduler.idle()) {
    const Batch batch = scheduler.next_batch();
    for (const auto& r : commit(scheduler, batch)) {
      ++replies;
      reason = r;
    }
  }
  EXPECT_EQ(replies, 2);
  EXPECT_EQ(reason, FinishReason::Context);
}

TEST(Scheduler, ReplyThatExactlyFitsEndsByLength) {
  Scheduler scheduler(small_limits());
  scheduler.submit(prompt(511), 1, {});
  std::optional<FinishReason> reason;
  while (!scheduler.idle()) {
    for (const auto& r : commit(scheduler, scheduler.next_batch())) reason = r;
  }
  EXPECT_EQ(reason, FinishReason::Length);
}

TEST(Scheduler, PromptsThatCannotRunAreRefused) {
  Scheduler scheduler(small_limits());
  EXPECT_EQ(kind_of([&] { scheduler.submit({}, 1, {}); }), ErrorKind::Usage);
  EXPECT_EQ(kind_of([&] { scheduler.submit(prompt(512), 1, {}); }), ErrorKind::Capacity);
  EXPECT_NO_THROW(scheduler.submit(prompt(511), 1, {}));
}

TEST(Scheduler, OneThatDoesNotFitWaitsAndNobodyOvertakesIt) {
  Scheduler scheduler(small_limits());                               // 16 pages
  const SequenceId first = scheduler.submit(prompt(300), 100, {});   // 7 pages
  const SequenceId second = scheduler.submit(prompt(300), 212, {});  // 8 pages
  const SequenceId third = scheduler.submit(prompt(300), 100, {});   // 7 pages: waits
  const SequenceId fourth = scheduler.submit(prompt(3), 1, {});      // would fit
  std::set<SequenceId> seen;
  for (int step = 0; step < 4; ++step) {
    const Batch batch = scheduler.next_batch();
    seen.insert(batch.sequences.begin(), batch.sequences.end());
    commit(scheduler, batch);
  }
  EXPECT_EQ(seen, (std::set<SequenceId>{first, second}));
  scheduler.cancel(first);
  const Batch batch = scheduler.next_batch();
  EXPECT_EQ(batch.sequences, (std::vector<SequenceId>{third, fourth}));
}

TEST(Scheduler, CancelFreesPagesAndIsForgivingOfUnknownIds) {
  Scheduler scheduler(small_limits());
  const SequenceId id = scheduler.submit(prompt(100), 50, {});
  const Batch batch = scheduler.next_batch();
  scheduler.cancel(id);
  scheduler.cancel(id);
  scheduler.cancel(12345);
  EXPECT_EQ(scheduler.num_free_pages(), 16);
  EXPECT_EQ(commit(scheduler, batch)[0], FinishReason::Interrupt);
  EXPECT_TRUE(scheduler.idle());
}

TEST(Scheduler, AShortPromptGoesAheadInAStepThatHasNoRoomForTheNextPass) {
  SchedulerLimits limits = small_limits();
  limits.max_prefill_tokens = 200;
  Scheduler scheduler(limits);
  const SequenceId first = scheduler.submit(prompt(128), 1, {});
  const SequenceId second = scheduler.submit(prompt(128), 1, {});
  const SequenceId third = scheduler.submit(prompt(72), 1, {});
  Batch batch = scheduler.next_batch();
  EXPECT_EQ(batch.sequences, (std::vector<SequenceId>{first, third}));
  commit(scheduler, batch);
  batch = scheduler.next_batch();
  EXPECT_EQ(batch.sequences, (std::vector<SequenceId>{second}));
}

TEST(Scheduler, AContextBelowTheChunkNeedsNoStepsOfAChunk) {
  SchedulerLimits limits = small_limits();
  limits.context_tokens = 100;
  limits.max_prefill_tokens = 100;
  Scheduler scheduler(limits);
  scheduler.submit(prompt(99), 1, {});
  EXPECT_EQ(scheduler.next_batch().token_ids.size(), 99U);
}

// ---- conversations

// Prompt and reply of a sequence of a conversation that ends by `reply_tokens`; its id.
SequenceId talk(Scheduler& scheduler, const std::vector<std::int32_t>& text, int reply_tokens,
                int& first_position) {
  const SequenceId id = scheduler.submit(text, reply_tokens, {}, true);
  first_position = -1;
  while (scheduler.is_live(id)) {
    const Batch batch = scheduler.next_batch();
    if (first_position < 0) first_position = batch.positions.at(0);
    commit(scheduler, batch);
  }
  return id;
}

TEST(Scheduler, AConversationGoesOnAtTheLastMultipleOfSixteen) {
  Scheduler scheduler(small_limits());
  int first = 0;
  talk(scheduler, prompt(60), 10, first);
  EXPECT_EQ(first, 0);
  EXPECT_LT(scheduler.num_free_pages(), 16);
  // 69 tokens are in the cache: the last one of the reply was never fed back.
  std::vector<std::int32_t> text = prompt(60);
  text.insert(text.end(), 10, 7);
  text.insert(text.end(), 30, 9);
  const SequenceId id = scheduler.submit(text, 5, {}, true);
  const Batch batch = scheduler.next_batch();
  EXPECT_EQ(batch.positions.front(), 64);
  EXPECT_EQ(batch.kv_lengths, (std::vector<std::int32_t>{100}));
  EXPECT_EQ(scheduler.reused_tokens(id), 64);
  scheduler.cancel(id);
}

TEST(Scheduler, PassesOfAConversationEndAtTheSameMultiples) {
  Scheduler scheduler(small_limits());
  int first = 0;
  talk(scheduler, prompt(40), 1, first);
  const SequenceId id = scheduler.submit(prompt(300), 1, {}, true);
  const Batch batch = scheduler.next_batch();
  EXPECT_EQ(batch.positions.front(), 32);
  EXPECT_EQ(batch.kv_lengths, (std::vector<std::int32_t>{128}));
  scheduler.cancel(id);
}

TEST(Scheduler, AConversationReusesWhatIsTheSameAndNoMore) {
  const struct {
    int same, reused;
  } cases[] = {{0, 0}, {15, 0}, {16, 16}, {31, 16}, {90, 80}, {100, 96}};
  for (const auto& c : cases) {
    Scheduler scheduler(small_limits());
    int first = 0;
    talk(scheduler, prompt(100), 1, first);
    std::vector<std::int32_t> text = prompt(c.same);
    text.insert(text.end(), 50, 499);
    talk(scheduler, text, 3, first);
    EXPECT_EQ(first, c.reused) << c.same;
  }
  // The whole prompt again: its last token is computed anew.
  Scheduler scheduler(small_limits());
  int first = 0;
  talk(scheduler, prompt(96), 1, first);
  talk(scheduler, prompt(96), 1, first);
  EXPECT_EQ(first, 80);
}

TEST(Scheduler, OthersNeitherUseNorLeaveAnything) {
  Scheduler scheduler(small_limits());
  int first = 0;
  talk(scheduler, prompt(100), 1, first);
  const SequenceId other = scheduler.submit(prompt(100), 1, {});
  const Batch batch = scheduler.next_batch();
  EXPECT_EQ(batch.positions.front(), 0);
  EXPECT_EQ(scheduler.reused_tokens(other), 0);
  commit(scheduler, batch);
  talk(scheduler, prompt(100), 1, first);
  EXPECT_EQ(first, 96);
}

TEST(Scheduler, WhatAConversationLeftGivesWayToWhoNeedsIt) {
  Scheduler scheduler(small_limits());
  int first = 0;
  talk(scheduler, prompt(400), 100, first);  // 8 of 16 pages
  EXPECT_EQ(scheduler.num_free_pages(), 8);
  (void)scheduler.submit(prompt(500), 10, {});
  (void)scheduler.submit(prompt(400), 10, {});
  const Batch batch = scheduler.next_batch();
  EXPECT_EQ(batch.sequences.size(), 2U);
  EXPECT_EQ(scheduler.num_free_pages(), 1);
}

TEST(Scheduler, NothingIsReusedOfASequenceThatIsDiscarded) {
  Scheduler scheduler(small_limits());
  const SequenceId id = scheduler.submit(prompt(100), 10, {}, true);
  commit(scheduler, scheduler.next_batch());
  scheduler.discard(id);
  EXPECT_EQ(scheduler.num_free_pages(), 16);
  int first = 0;
  talk(scheduler, prompt(100), 1, first);
  EXPECT_EQ(first, 0);
}

TEST(Scheduler, AConversationThatIsCancelledBetweenPassesKeepsThePassesThatRan) {
  Scheduler scheduler(small_limits());
  const SequenceId id = scheduler.submit(prompt(300), 10, {}, true);
  commit(scheduler, scheduler.next_batch());
  scheduler.cancel(id);
  int first = 0;
  talk(scheduler, prompt(300), 1, first);
  EXPECT_EQ(first, 128);
}

// What the next test knows of a sequence without asking the scheduler.
struct Expected {
  int prompt_tokens = 0;
  std::int64_t max_new = 0;
  int cached = 0;
  int replies = 0;
  bool of_conversation = false;
};

class RandomRun {
 public:
  explicit RandomRun(unsigned seed) : random_(seed), scheduler_(small_limits()) {}

  void step() {
    if (dice(3) == 0) submit();
    if (dice(40) == 0 && !live_.empty()) cancel();
    const Batch batch = scheduler_.next_batch();
    if (batch.empty()) return;
    check_shape(batch);
    for (std::size_t i = 0; i < batch.sequences.size(); ++i) check_sequence(batch, i);
    const auto reasons = commit(scheduler_, batch, 7);
    for (std::size_t i = 0; i < reasons.size(); ++i) {
      Expected& e = live_.at(batch.logit_sequences[i]);
      ++e.replies;
      ASSERT_EQ(reasons[i].has_value(), e.replies == e.max_new);
      if (reasons[i]) live_.erase(batch.logit_sequences[i]);
    }
  }

  void finish() {
    for (int i = 0; i < 100000 && !scheduler_.idle(); ++i)
      commit(scheduler_, scheduler_.next_batch());
    EXPECT_TRUE(scheduler_.idle());
    // One that needs all pages takes what a conversation left.
    for (int i = 0; i < 2; ++i) scheduler_.submit(prompt(400, 1000), 112, {});
    EXPECT_EQ(scheduler_.next_batch().sequences.size(), 2U);
    EXPECT_EQ(scheduler_.num_free_pages(), 0);
    EXPECT_GT(num_reusing_, 0);
  }

 private:
  int dice(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  void submit() {
    Expected e;
    e.prompt_tokens = 1 + dice(400);
    e.max_new = 1 + dice(100);
    e.of_conversation = dice(4) == 0;
    live_[scheduler_.submit(prompt(e.prompt_tokens), e.max_new, {}, e.of_conversation)] = e;
  }

  void cancel() {
    auto victim = live_.begin();
    std::advance(victim, dice(static_cast<int>(live_.size())));
    scheduler_.cancel(victim->first);
    live_.erase(victim);
  }

  void check_shape(const Batch& batch) {
    const std::size_t n = batch.sequences.size();
    ASSERT_LE(n, 4U);
    ASSERT_EQ(batch.q_indptr.size(), n + 1);
    ASSERT_EQ(batch.kv_indptr.size(), n + 1);
    ASSERT_EQ(batch.kv_lengths.size(), n);
    ASSERT_EQ(batch.token_ids.size(), batch.positions.size());
    ASSERT_EQ(static_cast<std::size_t>(batch.q_indptr.back()), batch.token_ids.size());
    ASSERT_EQ(static_cast<std::size_t>(batch.kv_indptr.back()), batch.page_table.size());
    const std::set<std::int32_t> pages(batch.page_table.begin(), batch.page_table.end());
    ASSERT_EQ(pages.size(), batch.page_table.size()) << "a page serves two sequences";
    ASSERT_TRUE(batch.kind == Batch::Kind::Decode || batch.token_ids.size() <= 256U);
  }

  void check_sequence(const Batch& batch, std::size_t i) {
    Expected& e = live_.at(batch.sequences[i]);
    const int begin = batch.q_indptr[i];
    const int end = batch.q_indptr[i + 1];
    if (e.cached == 0) {
      e.cached = scheduler_.reused_tokens(batch.sequences[i]);
      ASSERT_TRUE(e.cached == 0 || (e.of_conversation && e.cached % kReuseTokens == 0));
      ASSERT_LT(e.cached, e.prompt_tokens);
      num_reusing_ += e.cached > 0 ? 1 : 0;
    }
    ASSERT_EQ(batch.positions[static_cast<std::size_t>(begin)], e.cached);
    ASSERT_EQ(batch.kv_lengths[i], e.cached + end - begin);
    ASSERT_GE(batch.kv_indptr[i + 1] - batch.kv_indptr[i],
              layout::pages_for_tokens(batch.kv_lengths[i]));
    e.cached = batch.kv_lengths[i];
    if (batch.kind == Batch::Kind::Prefill) {
      ASSERT_TRUE(e.cached == e.prompt_tokens || e.cached % small_limits().prefill_chunk == 0);
    } else {
      ASSERT_EQ(end - begin, 1);
      ASSERT_EQ(e.cached, e.prompt_tokens + e.replies);
    }
  }

  std::mt19937 random_;
  Scheduler scheduler_;
  std::map<SequenceId, Expected> live_;
  int num_reusing_ = 0;
};

TEST(Scheduler, ThousandsOfRandomStepsKeepEveryPromise) {
  for (unsigned seed = 1; seed <= 5; ++seed) {
    RandomRun run(seed);
    for (int i = 0; i < 3000; ++i) {
      run.step();
      if (testing::Test::HasFatalFailure()) return;
    }
    run.finish();
  }
}

}  // namespace
}  // namespace fut
