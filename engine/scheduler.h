// Which tokens of which sequences run next: a pure state machine on the host. It never sees a
// backend, a model or a text, and it is tested alone.
//
// A sequence takes all the pages that it may ever need when it is admitted, so that it never has to
// be thrown out half-way; one that does not fit yet waits, in order of arrival. A prompt is cut
// into passes only at absolute multiples of prefill_chunk, whatever else is in the batch, so that a
// reply never depends on its neighbours; passes of several prompts share a step, end to end. Prefill
// goes before decode.
//
// A sequence of a conversation leaves its pages behind when it ends, until somebody needs them: the
// next one of a conversation begins with what both have in common, down to a multiple of
// kReuseTokens, where an INT4 cache has nothing in the raw tail.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "engine/page_pool.h"
#include "engine/step_kind.h"
#include "kernels/layout/kv_page_int4.h"

namespace fut {

using SequenceId = std::int64_t;

// A conversation goes on at a multiple of this.
inline constexpr std::int64_t kReuseTokens = layout::kTailTokens;

struct SchedulerLimits {
  int context_tokens = 0;                         // of one sequence, prompt and reply together
  int max_sequences = 1;                          // running at a time
  int prefill_chunk = kDefaultPrefillChunk;       // a multiple of the page size
  int max_prefill_tokens = kDefaultPrefillChunk;  // of one step; a whole pass, if not more
  int num_pages = 0;
};

// The tokens of one step in the form that the ops take (see RaggedBatch), on the host. Every array
// is parallel to `sequences` or to `token_ids`.
struct Batch {
  using Kind = StepKind;
  Kind kind = Kind::Prefill;
  std::vector<SequenceId> sequences;
  std::vector<std::int32_t> token_ids;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> q_indptr;   // [sequences + 1]
  std::vector<std::int32_t> kv_indptr;  // [sequences + 1]
  std::vector<std::int32_t> page_table;
  std::vector<std::int32_t> kv_lengths;     // [sequences], this step's tokens included
  std::vector<std::int32_t> raw_slots;      // [sequences], below max_sequences
  std::vector<std::int32_t> logit_rows;     // rows of the step that end a prompt or a decode token
  std::vector<SequenceId> logit_sequences;  // whose they are

  [[nodiscard]] bool empty() const { return token_ids.empty(); }
  // The largest of kv_lengths; 0 without any.
  [[nodiscard]] int longest_context() const;
};

enum class FinishReason { Eos, Stop, Length, Context, Interrupt, Error };

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  // Queues a prompt of at least one token. max_new_tokens < 0: up to the context. Throws Capacity
  // where the prompt leaves no room for one new token (both counts), Usage for an empty prompt.
  // of_conversation: begins with what the last such sequence left in the cache.
  SequenceId submit(std::vector<std::int32_t> prompt, std::int64_t max_new_tokens,
                    std::vector<std::int32_t> end_ids, bool of_conversation = false);

  // The next step's tokens; empty when nothing can run.
  [[nodiscard]] Batch next_batch();

  // One new token for each of batch.logit_sequences. Appends, retires sequences that ended and
  // returns their reasons, parallel to logit_sequences (nullopt: goes on).
  std::vector<std::optional<FinishReason>> commit(const Batch& batch,
                                                  std::span<const std::int32_t> new_tokens);

  // Ends a sequence now and frees its pages, but for what a conversation leaves behind; unknown or
  // ended ids are ignored.
  void cancel(SequenceId id);
  // The same, and nothing of it is used again.
  void discard(SequenceId id);

  [[nodiscard]] bool idle() const { return sequences_.empty(); }
  // Those that a conversation left behind are not among them.
  [[nodiscard]] int num_free_pages() const { return pool_.num_free(); }
  // Prompt and reply so far of a live sequence; the penalties' history.
  [[nodiscard]] std::span<const std::int32_t> tokens(SequenceId id) const;
  [[nodiscard]] bool is_live(SequenceId id) const { return sequences_.contains(id); }
  // Of a live sequence's prompt, what was in the cache when it was admitted.
  [[nodiscard]] int reused_tokens(SequenceId id) const { return sequences_.at(id).num_reused; }
  // Tokens that a live sequence may still get.
  [[nodiscard]] std::int64_t remaining_tokens(SequenceId id) const;

 private:
  struct Sequence {
    std::vector<std::int32_t> tokens;  // prompt, then reply
    int num_prompt = 0;
    int num_cached = 0;  // tokens whose keys are in the cache
    int num_reused = 0;  // of them, those of the sequence before
    bool of_conversation = false;
    std::int64_t max_tokens = 0;      // prompt and reply together
    bool limited_by_context = false;  // which of the two limits max_tokens is
    std::vector<std::int32_t> end_ids;
    std::vector<std::int32_t> pages;  // empty until admitted
    std::int32_t raw_slot = 0;        // of the rows that an INT4 cache keeps raw; while running
  };

  // What a sequence leaves behind: tokens whose keys are in the cache, and where.
  struct Remains {
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> pages;
    std::int32_t raw_slot = 0;
  };

  void admit();
  // Whether `s` has pages and a slot now.
  [[nodiscard]] bool give_room(Sequence& s);
  // Of the prompt of `s`, what the remains have.
  [[nodiscard]] int reusable_tokens(const Sequence& s) const;
  void resize_pages(Sequence& s, std::size_t wanted);  // there are enough
  void remove(SequenceId id, bool may_leave_remains);
  void drop_remains();
  void append(Batch& batch, SequenceId id, const Sequence& s, int num_tokens) const;

  SchedulerLimits limits_;
  PagePool pool_;
  SequenceId next_id_ = 1;
  std::map<SequenceId, Sequence> sequences_;
  std::deque<SequenceId> waiting_;
  std::vector<SequenceId> running_;
  std::vector<std::int32_t> free_raw_slots_;
  std::optional<Remains> remains_;
};

}  // namespace fut
