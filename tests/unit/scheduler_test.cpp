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

// What the next test knows of a sequence without asking the scheduler.
struct Expected {
  int prompt_tokens = 0;
  std::int64_t max_new = 0;
  int cached = 0;
  int replies = 0;
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
    EXPECT_EQ(scheduler_.num_free_pages(), small_limits().num_pages);
  }

 private:
  int dice(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  void submit() {
    Expected e;
    e.prompt_tokens = 1 + dice(400);
    e.max_new = 1 + dice(100);
    live_[scheduler_.submit(prompt(e.prompt_tokens), e.max_new, {})] = e;
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
