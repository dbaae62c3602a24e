// Admission, batching and retirement of sequences. See the header for the policy.
#include "engine/scheduler.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/layout/kv_page.h"

namespace fut {

int Batch::longest_context() const {
  const auto longest = std::max_element(kv_lengths.begin(), kv_lengths.end());
  return longest == kv_lengths.end() ? 0 : *longest;
}

Scheduler::Scheduler(const SchedulerLimits& limits) : limits_(limits), pool_(limits.num_pages) {
  FUT_CHECK(limits.context_tokens >= 2, "context of {} tokens", limits.context_tokens);
  FUT_CHECK(limits.max_sequences >= 1, "{} sequences", limits.max_sequences);
  FUT_CHECK(limits.prefill_chunk >= 1 && limits.prefill_chunk % layout::kPageTokens == 0,
            "prefill chunk of {} tokens, pages of {}", limits.prefill_chunk, layout::kPageTokens);
  FUT_CHECK(limits.max_prefill_tokens >= std::min(limits.prefill_chunk, limits.context_tokens),
            "step of {} tokens, chunk of {}, context of {}", limits.max_prefill_tokens,
            limits.prefill_chunk, limits.context_tokens);
  FUT_CHECK(limits.num_pages >= layout::pages_for_tokens(limits.context_tokens),
            "{} pages for a context of {} tokens", limits.num_pages, limits.context_tokens);
  for (int slot = limits.max_sequences - 1; slot >= 0; --slot) free_raw_slots_.push_back(slot);
}

SequenceId Scheduler::submit(std::vector<std::int32_t> prompt, std::int64_t max_new_tokens,
                             std::vector<std::int32_t> end_ids, bool of_conversation) {
  if (prompt.empty()) {
    throw usage_error("the prompt has no tokens: give a text, or a model whose tokenizer adds BOS");
  }
  FUT_CHECK(max_new_tokens != 0, "a reply of {} tokens", max_new_tokens);
  const auto num_prompt = static_cast<std::int64_t>(prompt.size());
  if (num_prompt >= limits_.context_tokens) {
    throw capacity_error(
        "the prompt has {} tokens and the context holds {}, the reply included: shorten the "
        "prompt, "
        "raise -c where the model allows it, or let it be cut with --truncate head|tail",
        num_prompt, limits_.context_tokens);
  }
  const std::int64_t room = limits_.context_tokens - num_prompt;
  Sequence s;
  s.limited_by_context = max_new_tokens < 0 || max_new_tokens > room;
  s.max_tokens = num_prompt + (s.limited_by_context ? room : max_new_tokens);
  s.num_prompt = static_cast<int>(num_prompt);
  s.tokens = std::move(prompt);
  s.end_ids = std::move(end_ids);
  s.of_conversation = of_conversation;
  const SequenceId id = next_id_++;
  sequences_.emplace(id, std::move(s));
  waiting_.push_back(id);
  return id;
}

void Scheduler::admit() {
  while (!waiting_.empty() && static_cast<int>(running_.size()) < limits_.max_sequences) {
    // In order of arrival: nobody overtakes the one that waits.
    if (!give_room(sequences_.at(waiting_.front()))) return;
    running_.push_back(waiting_.front());
    waiting_.pop_front();
  }
}

int Scheduler::reusable_tokens(const Sequence& s) const {
  if (!s.of_conversation || !remains_) return 0;
  // The last token of the prompt is computed in any case: its logits are wanted.
  const auto most = std::min(remains_->tokens.size(), s.tokens.size() - 1);
  const auto end = remains_->tokens.begin() + static_cast<std::ptrdiff_t>(most);
  const auto common = std::mismatch(remains_->tokens.begin(), end, s.tokens.begin()).first -
                      remains_->tokens.begin();
  return static_cast<int>(common / kReuseTokens * kReuseTokens);
}

bool Scheduler::give_room(Sequence& s) {
  // The last token of a reply is never fed back, but its page costs little and keeps the rule
  // plain.
  const auto wanted = static_cast<std::size_t>(layout::pages_for_tokens(s.max_tokens));
  if (const int reused = reusable_tokens(s); reused > 0) {
    if (wanted > remains_->pages.size() + static_cast<std::size_t>(pool_.num_free())) return false;
    s.num_cached = s.num_reused = reused;
    s.pages = std::move(remains_->pages);
    s.raw_slot = remains_->raw_slot;
    remains_.reset();
    resize_pages(s, wanted);
    return true;
  }
  if (free_raw_slots_.empty() || static_cast<std::size_t>(pool_.num_free()) < wanted)
    drop_remains();
  if (static_cast<std::size_t>(pool_.num_free()) < wanted) return false;
  resize_pages(s, wanted);
  s.raw_slot = free_raw_slots_.back();
  free_raw_slots_.pop_back();
  return true;
}

void Scheduler::resize_pages(Sequence& s, std::size_t wanted) {
  if (wanted < s.pages.size()) {
    pool_.give_back({s.pages.begin() + static_cast<std::ptrdiff_t>(wanted), s.pages.end()});
    s.pages.resize(wanted);
    return;
  }
  const auto more = pool_.take(static_cast<std::int64_t>(wanted - s.pages.size()));
  FUT_CHECK(more.has_value(), "{} pages of {} free", wanted - s.pages.size(), pool_.num_free());
  s.pages.insert(s.pages.end(), more->begin(), more->end());
}

void Scheduler::drop_remains() {
  if (!remains_) return;
  pool_.give_back(remains_->pages);
  free_raw_slots_.push_back(remains_->raw_slot);
  remains_.reset();
}

void Scheduler::append(Batch& batch, SequenceId id, const Sequence& s, int num_tokens) const {
  const int begin = s.num_cached;
  const int end = begin + num_tokens;
  batch.sequences.push_back(id);
  for (int t = begin; t < end; ++t) {
    batch.token_ids.push_back(s.tokens[static_cast<std::size_t>(t)]);
    batch.positions.push_back(t);
  }
  batch.q_indptr.push_back(static_cast<std::int32_t>(batch.token_ids.size()));
  // All pages that it will ever fill: a step that follows on the device finds the next one here.
  batch.page_table.insert(batch.page_table.end(), s.pages.begin(), s.pages.end());
  batch.kv_indptr.push_back(static_cast<std::int32_t>(batch.page_table.size()));
  batch.kv_lengths.push_back(end);
  batch.raw_slots.push_back(s.raw_slot);
  if (end == static_cast<int>(s.tokens.size())) {
    batch.logit_rows.push_back(static_cast<std::int32_t>(batch.token_ids.size()) - 1);
    batch.logit_sequences.push_back(id);
  }
}

Batch Scheduler::next_batch() {
  admit();
  Batch batch;
  batch.q_indptr.push_back(0);
  batch.kv_indptr.push_back(0);
  batch.kind = Batch::Kind::Prefill;
  int budget = limits_.max_prefill_tokens;
  for (const SequenceId id : running_) {
    const Sequence& s = sequences_.at(id);
    if (s.num_cached >= s.num_prompt) continue;
    const int chunk_end = (s.num_cached / limits_.prefill_chunk + 1) * limits_.prefill_chunk;
    const int pass = std::min(chunk_end, s.num_prompt) - s.num_cached;
    // Never cut at another place to fill the step. Whoever is first always has a place in it.
    if (pass > budget) continue;
    budget -= pass;
    append(batch, id, s, pass);
  }
  if (!batch.empty()) return batch;
  batch.kind = Batch::Kind::Decode;
  for (const SequenceId id : running_) append(batch, id, sequences_.at(id), 1);
  return batch;
}

std::vector<std::optional<FinishReason>> Scheduler::commit(
    const Batch& batch, std::span<const std::int32_t> new_tokens) {
  FUT_CHECK(new_tokens.size() == batch.logit_sequences.size(), "{} tokens for {} sequences",
            new_tokens.size(), batch.logit_sequences.size());
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const auto found = sequences_.find(batch.sequences[i]);
    if (found != sequences_.end()) found->second.num_cached = batch.kv_lengths[i];
  }
  std::vector<std::optional<FinishReason>> reasons(new_tokens.size());
  for (std::size_t i = 0; i < new_tokens.size(); ++i) {
    const auto found = sequences_.find(batch.logit_sequences[i]);
    if (found == sequences_.end()) {  // cancelled while the step ran
      reasons[i] = FinishReason::Interrupt;
      continue;
    }
    Sequence& s = found->second;
    s.tokens.push_back(new_tokens[i]);
    if (std::find(s.end_ids.begin(), s.end_ids.end(), new_tokens[i]) != s.end_ids.end()) {
      reasons[i] = FinishReason::Eos;
    } else if (static_cast<std::int64_t>(s.tokens.size()) >= s.max_tokens) {
      reasons[i] = s.limited_by_context ? FinishReason::Context : FinishReason::Length;
    }
    if (reasons[i]) cancel(found->first);
  }
  return reasons;
}

void Scheduler::cancel(SequenceId id) {
  remove(id, true);
}

void Scheduler::discard(SequenceId id) {
  remove(id, false);
}

void Scheduler::remove(SequenceId id, bool may_leave_remains) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& s = found->second;
  const bool was_running = std::erase(running_, id) > 0;
  std::erase(waiting_, id);
  if (was_running && may_leave_remains && s.of_conversation && s.num_cached >= kReuseTokens) {
    drop_remains();
    s.tokens.resize(static_cast<std::size_t>(s.num_cached));
    remains_ = Remains{std::move(s.tokens), std::move(s.pages), s.raw_slot};
  } else {
    pool_.give_back(s.pages);
    if (was_running) free_raw_slots_.push_back(s.raw_slot);
  }
  sequences_.erase(found);
}

std::int64_t Scheduler::remaining_tokens(SequenceId id) const {
  const Sequence& s = sequences_.at(id);
  return s.max_tokens - std::ssize(s.tokens);
}

std::span<const std::int32_t> Scheduler::tokens(SequenceId id) const {
  return sequences_.at(id).tokens;
}

}  // namespace fut
