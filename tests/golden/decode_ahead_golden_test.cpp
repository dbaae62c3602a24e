// Decode steps that are launched before earlier ones are looked at change no reply: not its tokens, not
// where it ends, whoever else comes, goes or is cancelled meanwhile.
#include <algorithm>
#include <filesystem>
#include <gtest/gtest.h>
#include <map>
#include <utility>

#include "engine/decode_loop.h"
#include "tests/support/backends.h"
#include "tests/support/model_runner.h"
#include "tests/support/test_data.h"

namespace fut::test {
namespace {

using Ids = std::vector<std::int32_t>;

Ids prompt(int tokens, int salt) {
  Ids ids{4088};
  for (int i = 1; i < tokens; ++i) ids.push_back((i * 37 + salt * 101) % 4088);
  return ids;
}

struct Reply {
  Ids ids;
  std::vector<int> positions;
  FinishReason finish = FinishReason::Interrupt;
  bool operator==(const Reply&) const = default;
};

// A prompt and when it comes: after so many calls of step().
struct Arrival {
  Request request;
  int after_steps = 0;
  int cancel_after_tokens = -1;
};

Request request(const Ids& ids, int max_new_tokens) {
  Request r;
  r.prompt = ids;
  r.max_new_tokens = max_new_tokens;
  r.sampling.sample.temperature = 0.9F;
  r.sampling.sample.seed = ids.size();
  return r;
}

std::vector<Arrival> arrivals() {
  std::vector<Arrival> all;
  all.push_back({request(prompt(5, 1), 30)});
  all.push_back({request(prompt(15, 2), 9)});
  all.push_back({request(prompt(70, 3), 40), 6});
  all.push_back({request(prompt(3, 4), 200), 7, 11});  // cancelled
  all.push_back({request(prompt(33, 5), 25), 20});     // takes a place that became free
  all.push_back({request(prompt(2, 6), 17), 21});
  all[0].request.sampling.sample.repetition_penalty = 1.3F;
  all[0].request.sampling.repeat_last_n = 8;
  all[2].request.sampling.sample.frequency_penalty = 0.4F;
  all[2].request.sampling.repeat_last_n = -1;
  all[4].request.sampling.sample.temperature = 0;
  return all;
}

std::map<int, Reply> run(ModelRunner& runner, std::vector<Arrival> all, int steps_ahead) {
  EngineOptions options;
  options.context_tokens = 256;
  options.max_sequences = 3;
  options.steps_ahead = steps_ahead;
  options.kv_cache = runner.kv_cache();
  Engine engine(runner.backend(), runner.load_model(), options);
  std::map<SequenceId, int> numbers;
  std::map<int, Reply> replies;
  std::size_t next = 0;
  for (int steps = 0; next < all.size() || !engine.idle(); ++steps) {
    for (; next < all.size() && all[next].after_steps <= steps; ++next) {
      numbers[engine.submit(all[next].request)] = static_cast<int>(next);
    }
    std::vector<SequenceId> cancelled;
    for (const TokenEvent& event : engine.step()) {
      const int number = numbers.at(event.sequence);
      Reply& reply = replies[number];
      reply.ids.push_back(event.token);
      reply.positions.push_back(event.position);
      if (event.finish) reply.finish = *event.finish;
      const int most = all[static_cast<std::size_t>(number)].cancel_after_tokens;
      if (std::ssize(reply.ids) == most) cancelled.push_back(event.sequence);
    }
    for (const SequenceId id : cancelled) engine.cancel(id);
  }
  return replies;
}

void expect_the_same_replies(const RunnerOptions& options) {
  ModelRunner runner(source_path("configs/demo-6m"), options);
  std::vector<Arrival> all = arrivals();
  const auto expected = run(runner, all, 1);
  ASSERT_EQ(expected.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Reply& reply = expected.at(static_cast<int>(i));
    const bool cancelled = all[i].cancel_after_tokens > 0;
    EXPECT_EQ(std::ssize(reply.ids),
              cancelled ? all[i].cancel_after_tokens : all[i].request.max_new_tokens);
    EXPECT_EQ(reply.finish, cancelled ? FinishReason::Interrupt : FinishReason::Length);
  }
  for (int ahead = 2; ahead <= DecodeLoop::kMostAhead; ++ahead) {
    EXPECT_EQ(run(runner, all, ahead), expected) << ahead << " steps ahead";
  }
  // A token in the middle of a reply as one that ends it.
  const Ids& reply = expected.at(2).ids;
  all[2].request.end_ids = {reply[reply.size() / 2]};
  const auto ended = run(runner, all, 1);
  EXPECT_EQ(ended.at(2).finish, FinishReason::Eos);
  EXPECT_LE(ended.at(2).ids.size(), reply.size() / 2 + 1);
  EXPECT_EQ(run(runner, all, DecodeLoop::kMostAhead), ended);
}

TEST(DecodeAhead, ChangesNoReply) {
  expect_the_same_replies({.precision = Precision::Bf16});
}

TEST(DecodeAhead, OneSeesEveryStepsOwnLogits) {
  ModelRunner runner(source_path("configs/demo-6m"), {.precision = Precision::Bf16});
  const auto logprobs = [&](int steps_ahead) {
    EngineOptions options;
    options.max_sequences = 2;
    options.steps_ahead = steps_ahead;
    options.kv_cache = runner.kv_cache();
    Engine engine(runner.backend(), runner.load_model(), options);
    for (const int salt : {1, 2}) {
      Request r = request(prompt(9 * salt, salt), 12);
      r.num_logprobs = 2;
      engine.submit(r);
    }
    std::vector<std::pair<std::int32_t, float>> seen;
    while (!engine.idle()) {
      for (const TokenEvent& event : engine.step()) {
        seen.emplace_back(event.token, event.logprob);
        for (const TokenLogprob& top : event.top_logprobs)
          seen.emplace_back(top.token, top.logprob);
      }
    }
    return seen;
  };
  EXPECT_EQ(logprobs(1), logprobs(3));
}

// Where contexts of another kind begin is passed by some sequences alone, by others meanwhile, and left behind
// when a long one ends: no reply depends on it.
void expect_kinds_of_contexts_change_no_reply(const RunnerOptions& options) {
  const std::filesystem::path folder = source_path("configs/demo-6m");
  ModelRunner of_one_kind(folder, options);
  const auto expected = run(of_one_kind, arrivals(), DecodeLoop::kMostAhead);
  for (const bool record : {true, false}) {
    RunnerOptions of_two_kinds = options;
    of_two_kinds.long_context = 40;
    of_two_kinds.record_graphs = record;
    ModelRunner runner(folder, of_two_kinds);
    for (const int ahead : {1, DecodeLoop::kMostAhead}) {
      EXPECT_EQ(run(runner, arrivals(), ahead), expected)
          << ahead << " steps ahead, recorded: " << record;
    }
  }
}

TEST(DecodeAhead, KindsOfContextsChangeNoReply) {
  expect_kinds_of_contexts_change_no_reply({.precision = Precision::Bf16});
}

TEST(DecodeAhead, KindsOfContextsChangeNoReplyOnTheGpu) {
  FUT_REQUIRE_GPU_DEVICE();
  expect_kinds_of_contexts_change_no_reply({.precision = Precision::Bf16, .gpu = true});
}

// Recorded once for each kind that a reply comes to, and never again.
TEST(DecodeAhead, StepsAreRecordedForEachKindOfContextsThatIsReached) {
  const std::pair<int, int> cases[] = {{0, 1}, {10, 1}, {30, 2}, {60, 1}};
  for (const auto& [long_context, recordings] : cases) {
    ModelRunner runner(source_path("configs/demo-6m"),
                       {.precision = Precision::Bf16, .long_context = long_context});
    EngineOptions options;
    options.context_tokens = 128;
    options.max_sequences = 1;
    options.kv_cache = runner.kv_cache();
    Engine engine(runner.backend(), runner.load_model(), options);
    for (const int salt : {1, 2}) {
      engine.submit(request(prompt(20, salt), 20));
      while (!engine.idle()) static_cast<void>(engine.step());
    }
    EXPECT_EQ(engine.times().recordings.count, recordings) << long_context;
  }
}

TEST(DecodeLoopRows, BeginAnewForClearlyFewerAlone) {
  const std::pair<int, int> borders[] = {{1, 0},   {2, 1},   {3, 2},   {4, 3},   {5, 4},   {6, 4},
                                         {7, 6},   {8, 6},   {9, 8},   {12, 8},  {13, 12}, {16, 12},
                                         {17, 16}, {24, 16}, {25, 24}, {32, 24}, {33, 32}};
  for (const auto& [rows, fewer] : borders) EXPECT_EQ(DecodeLoop::fewer_rows(rows), fewer) << rows;
}

// Replies that end one after the other, some because nobody listens any more.
void expect_draining_changes_no_reply(const RunnerOptions& options) {
  ModelRunner runner(source_path("configs/demo-6m"), options);
  constexpr int kRows = 32;
  const auto engine_options = [&](int rows) {
    EngineOptions o;
    o.context_tokens = 128;
    o.max_sequences = rows;
    o.kv_cache = runner.kv_cache();
    return o;
  };
  Engine engine(runner.backend(), runner.load_model(), engine_options(kRows));
  const auto request_of = [](int row) { return request(prompt(3 + row, row), 4 + 3 * row / 2); };
  std::map<SequenceId, int> rows;
  std::vector<Ids> replies(kRows);
  for (int row = 0; row < kRows; ++row) rows[engine.submit(request_of(row))] = row;
  while (!engine.idle()) {
    std::vector<SequenceId> cancelled;
    for (const TokenEvent& event : engine.step()) {
      const int row = rows.at(event.sequence);
      Ids& reply = replies[static_cast<std::size_t>(row)];
      reply.push_back(event.token);
      if (row % 5 == 4 && std::ssize(reply) == 5) cancelled.push_back(event.sequence);
    }
    for (const SequenceId id : cancelled) engine.cancel(id);
  }
  int most = 1;  // one for all rows, and one each time that they are clearly fewer
  for (int left = kRows; left > 1; left = DecodeLoop::fewer_rows(left)) ++most;
  EXPECT_LE(engine.times().recordings.count, most);
  Engine alone(runner.backend(), runner.load_model(), engine_options(1));
  for (int row = 0; row < kRows; ++row) {
    Ids expected;
    alone.submit(request_of(row));
    while (!alone.idle()) {
      for (const TokenEvent& event : alone.step()) expected.push_back(event.token);
    }
    if (row % 5 == 4) expected.resize(5);
    EXPECT_EQ(replies[static_cast<std::size_t>(row)], expected) << row;
  }
}

TEST(DecodeAhead, RowsThatEndedGoAlongAndChangeNoReply) {
  expect_draining_changes_no_reply({.precision = Precision::Bf16});
}

TEST(DecodeAhead, RowsThatEndedGoAlongOnTheGpuToo) {
  FUT_REQUIRE_GPU_DEVICE();
  expect_draining_changes_no_reply({.precision = Precision::Bf16, .gpu = true});
}

}  // namespace
}  // namespace fut::test
