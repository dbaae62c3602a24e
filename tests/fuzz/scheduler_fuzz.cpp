// The scheduler under any row of submissions, steps and cancellations. The model of it is a cache of pages
// that remembers which token at which position was written where: whatever a step reads must be what its
// own sequence has there, so that a page shared, lost or kept too long shows as a wrong token.
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "engine/scheduler.h"
#include "kernels/layout/kv_page.h"
#include "tests/fuzz/fuzz_bytes.h"

namespace {

using namespace fut;
using test::require;

// What a sequence was promised and what came of it.
struct Request {
  std::vector<std::int32_t> tokens;  // prompt, then reply
  int num_prompt = 0;
  int cached = 0;
  std::int64_t most_new = 0;
  bool limited_by_context = false;
  std::set<std::int32_t> end_ids;
  bool of_conversation = false;
  std::vector<std::int32_t> pages;  // once it runs
  std::optional<std::int32_t> raw_slot;
};

SchedulerLimits limits_of(test::FuzzBytes& input) {
  SchedulerLimits limits;
  limits.context_tokens = 2 + input.below(250);
  limits.max_sequences = 1 + input.below(5);
  limits.prefill_chunk = layout::kPageTokens * (1 + input.below(3));
  limits.max_prefill_tokens =
      std::min(limits.prefill_chunk, limits.context_tokens) + input.below(200);
  limits.num_pages =
      static_cast<int>(layout::pages_for_tokens(limits.context_tokens)) + input.below(12);
  return limits;
}

class Run {
 public:
  explicit Run(const SchedulerLimits& limits)
      : limits_(limits),
        scheduler_(limits),
        cache_(static_cast<std::size_t>(limits.num_pages) * layout::kPageTokens, Cell{}) {}

  void operate(test::FuzzBytes& input) {
    const int choice = input.below(8);
    if (choice < 3 && live_.size() < kMostLive) return submit(input);
    if (choice == 3) return end_one(input);
    step(input);
  }

  // Everything ends; what is left belongs to at most one conversation, and to nobody in the end.
  void drain(test::FuzzBytes& input) {
    while (!live_.empty()) step(input);
    require(scheduler_.idle() && scheduler_.next_batch().empty(), "something runs that has ended");
    require(scheduler_.num_free_pages() >=
                limits_.num_pages - layout::pages_for_tokens(limits_.context_tokens),
            "pages that nobody has");
    // As many of a page each as may run take all slots, or all pages, of the one that is left.
    for (int i = 0; i < limits_.max_sequences; ++i) (void)scheduler_.submit({1}, 1, {});
    require(!scheduler_.next_batch().empty(), "none of those that fit runs");
    const int running = std::min(limits_.max_sequences, limits_.num_pages);
    require(scheduler_.num_free_pages() == limits_.num_pages - running, "a page is lost");
  }

 private:
  static constexpr std::size_t kMostLive = 12;  // so that an input ends in time
  struct Cell {
    std::int32_t token = -1;
    int position = -1;
  };

  // Prompts of few different tokens have beginnings in common.
  void submit(test::FuzzBytes& input) {
    Request request;
    const int num_prompt = input.below(limits_.context_tokens + 2);
    const int differs_from = input.below(limits_.context_tokens + 2);
    const int other = input.below(3);
    for (int i = 0; i < num_prompt; ++i) request.tokens.push_back(i < differs_from ? i % 7 : other);
    request.num_prompt = num_prompt;
    const int wanted = input.below(limits_.context_tokens + 8);
    const std::int64_t most_new = wanted == 0 ? -1 : wanted;
    if (input.below(2) == 1) request.end_ids = {input.below(4), 900};
    request.of_conversation = input.below(2) == 1;
    const std::int64_t room = limits_.context_tokens - num_prompt;
    request.limited_by_context = most_new < 0 || most_new > room;
    request.most_new = request.limited_by_context ? room : most_new;

    SequenceId id = 0;
    const bool taken = test::accepted([&] {
      id = scheduler_.submit(request.tokens, most_new,
                             {request.end_ids.begin(), request.end_ids.end()},
                             request.of_conversation);
    });
    require(taken == (num_prompt > 0 && room > 0), "refused what fits, or took what does not");
    if (!taken) return;
    require(id > last_id_ && scheduler_.is_live(id), "an id that is not new");
    last_id_ = id;
    live_.emplace(id, std::move(request));
  }

  void end_one(test::FuzzBytes& input) {
    const auto id = static_cast<SequenceId>(input.below(static_cast<int>(last_id_) + 2));
    if (input.below(4) == 0) {
      scheduler_.discard(id);
    } else {
      scheduler_.cancel(id);
    }
    require(!scheduler_.is_live(id), "a sequence outlives its end");
    live_.erase(id);
  }

  void step(test::FuzzBytes& input) {
    const Batch batch = scheduler_.next_batch();
    require(batch.empty() == live_.empty(), "nothing runs, or nobody's tokens do");
    if (batch.empty()) return;
    check_whole(batch);
    for (std::size_t i = 0; i < batch.sequences.size(); ++i) check_sequence(batch, i);
    check_order(batch);
    check_pages();
    // What happens while a step runs, to those in it and others. A step that follows by itself on the device
    // is committed behind batches that nobody ran.
    const int meanwhile = input.below(16);
    if (meanwhile == 0) end_one(input);
    if (meanwhile == 1 && live_.size() < kMostLive) submit(input);
    if (meanwhile < 3) (void)scheduler_.next_batch();
    std::vector<std::int32_t> drawn;
    for (std::size_t i = 0; i < batch.logit_sequences.size(); ++i) drawn.push_back(input.below(20));
    const auto reasons = scheduler_.commit(batch, drawn);
    require(reasons.size() == drawn.size(), "a reason for each token");
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      take(batch.logit_sequences[i], drawn[i], reasons[i]);
    }
  }

  void take(SequenceId id, std::int32_t token, std::optional<FinishReason> reason) {
    const auto found = live_.find(id);
    if (found == live_.end()) {
      return require(reason == FinishReason::Interrupt, "a token for one that has ended");
    }
    Request& request = found->second;
    request.tokens.push_back(token);
    const auto replied = static_cast<std::int64_t>(request.tokens.size()) - request.num_prompt;
    std::optional<FinishReason> wanted;
    if (replied == request.most_new) {
      wanted = request.limited_by_context ? FinishReason::Context : FinishReason::Length;
    }
    if (request.end_ids.contains(token)) wanted = FinishReason::Eos;
    require(reason == wanted, "an end too early, too late or of another kind");
    require(scheduler_.is_live(id) == !reason.has_value(), "ended and not ended");
    if (reason) {
      live_.erase(found);
      return;
    }
    require(scheduler_.remaining_tokens(id) == request.most_new - replied, "tokens that may come");
    const auto kept = scheduler_.tokens(id);
    require(std::equal(kept.begin(), kept.end(), request.tokens.begin(), request.tokens.end()),
            "other tokens than were drawn");
  }

  void check_whole(const Batch& b) {
    const std::size_t n = b.sequences.size();
    require(static_cast<int>(n) <= limits_.max_sequences, "too many sequences");
    require(b.q_indptr.size() == n + 1 && b.kv_indptr.size() == n + 1 && b.kv_lengths.size() == n &&
                b.raw_slots.size() == n && b.positions.size() == b.token_ids.size() &&
                b.logit_rows.size() == b.logit_sequences.size(),
            "arrays that are not parallel");
    require(b.q_indptr.back() == std::ssize(b.token_ids) &&
                b.kv_indptr.back() == std::ssize(b.page_table),
            "a batch that does not end at its end");
    const bool prefill = b.kind == Batch::Kind::Prefill;
    require(!prefill || std::ssize(b.token_ids) <= limits_.max_prefill_tokens,
            "a step over its budget");
  }

  void check_sequence(const Batch& b, std::size_t i) {
    const auto found = live_.find(b.sequences[i]);
    require(found != live_.end(), "a step of one that has ended");
    Request& request = found->second;
    const std::vector<std::int32_t> pages(b.page_table.begin() + b.kv_indptr[i],
                                          b.page_table.begin() + b.kv_indptr[i + 1]);
    const bool first_step = !request.raw_slot;
    if (first_step) {
      const int reused = scheduler_.reused_tokens(b.sequences[i]);
      require(reused % kReuseTokens == 0 && reused < request.num_prompt &&
                  (reused == 0 || request.of_conversation),
              "reused what cannot be");
      request.cached = reused;
      request.pages = pages;
      request.raw_slot = b.raw_slots[i];
    }
    require(request.pages == pages && request.raw_slot == b.raw_slots[i],
            "pages or slot have changed");
    require(std::ssize(pages) == layout::pages_for_tokens(request.num_prompt + request.most_new),
            "other pages than it may need");
    const int begin = b.q_indptr[i];
    const int end = b.q_indptr[i + 1];
    const int length = request.cached + end - begin;
    const bool prefill = b.kind == Batch::Kind::Prefill;
    const int chunk_end = (request.cached / limits_.prefill_chunk + 1) * limits_.prefill_chunk;
    require(length == (prefill ? std::min(chunk_end, request.num_prompt) : request.cached + 1),
            "a pass that depends on its neighbours");
    require(b.kv_lengths[i] == length, "a length that is another");
    for (int t = begin; t < end; ++t) {
      const int position = request.cached + t - begin;
      const auto row = static_cast<std::size_t>(t);
      require(b.positions[row] == position, "a position that is another");
      require(b.token_ids[row] == request.tokens[static_cast<std::size_t>(position)],
              "another token");
      cell(pages, position) = {b.token_ids[row], position};
    }
    request.cached = length;
    const bool wants_logits = length == std::ssize(request.tokens);
    const auto row = std::find(b.logit_sequences.begin(), b.logit_sequences.end(), b.sequences[i]);
    require((row != b.logit_sequences.end()) == wants_logits, "logits for one too many or too few");
    require(!wants_logits ||
                b.logit_rows[static_cast<std::size_t>(row - b.logit_sequences.begin())] == end - 1,
            "logits of another row");
    if (first_step) check_reads(request, length);
  }

  // Once is enough: from then on the pages are its own, see check_pages.
  void check_reads(const Request& request, int length) {
    for (int position = 0; position < length; ++position) {
      const Cell& seen = cell(request.pages, position);
      require(seen.position == position &&
                  seen.token == request.tokens[static_cast<std::size_t>(position)],
              "a step reads what another sequence wrote");
    }
  }

  // Who came earlier runs, but for a prompt's pass that finds no room in the step.
  void check_order(const Batch& b) {
    const std::set<SequenceId> in_step(b.sequences.begin(), b.sequences.end());
    const SequenceId last = *in_step.rbegin();
    int budget = limits_.max_prefill_tokens;
    for (const auto& [id, request] : live_) {
      if (in_step.contains(id)) {
        const auto at = static_cast<std::size_t>(
            std::find(b.sequences.begin(), b.sequences.end(), id) - b.sequences.begin());
        budget -= b.q_indptr[at + 1] - b.q_indptr[at];
        continue;
      }
      if (id > last && !request.raw_slot) break;  // it may wait, and so do those behind it
      require(b.kind == Batch::Kind::Prefill, "overtaken");
      if (request.raw_slot && request.cached >= request.num_prompt) continue;
      const int cached = request.raw_slot ? request.cached : scheduler_.reused_tokens(id);
      const int chunk_end = (cached / limits_.prefill_chunk + 1) * limits_.prefill_chunk;
      require(std::min(chunk_end, request.num_prompt) - cached > budget,
              "passed over without need");
    }
  }

  // No page and no slot serves two, none is outside, and those that are free are not in use.
  void check_pages() {
    std::vector<bool> pages(static_cast<std::size_t>(limits_.num_pages));
    std::vector<bool> slots(static_cast<std::size_t>(limits_.max_sequences));
    const auto use = [](std::vector<bool>& all, std::int32_t one, std::string_view what) {
      const auto at = static_cast<std::size_t>(one);
      require(at < all.size() && !all[at], what);
      all[at] = true;
    };
    int used = 0;
    for (const auto& [id, request] : live_) {
      if (!request.raw_slot) continue;
      used += static_cast<int>(request.pages.size());
      for (const std::int32_t page : request.pages) use(pages, page, "a page of two, or of none");
      use(slots, *request.raw_slot, "a slot of two, or of none");
    }
    require(scheduler_.num_free_pages() + used <= limits_.num_pages, "a page is free and in use");
  }

  Cell& cell(const std::vector<std::int32_t>& pages, int position) {
    const auto page =
        static_cast<std::size_t>(pages[static_cast<std::size_t>(position / layout::kPageTokens)]);
    return cache_[page * layout::kPageTokens +
                  static_cast<std::size_t>(position % layout::kPageTokens)];
  }

  SchedulerLimits limits_;
  Scheduler scheduler_;
  std::vector<Cell> cache_;
  std::map<SequenceId, Request> live_;
  SequenceId last_id_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  test::FuzzBytes input(data, size);
  Run run(limits_of(input));
  while (!input.empty()) run.operate(input);
  run.drain(input);
  return 0;
}
