// Token ids in, token ids out, for any number of sequences at a time. Owns model, cache and
// scheduler; single-threaded: callers loop over step().
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/model.h"
#include "engine/scheduler.h"
#include "engine/workspace.h"

namespace fut {

struct EngineOptions {
  int context_tokens = 0;  // 0: the model's own; must not exceed it
  int max_sequences = 1;
  int prefill_chunk = 512;
};

struct SamplingParams {
  SampleParams sample;
  int repeat_last_n = 64;  // window of the penalties, prompt included; -1: everything; 0: off
};

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;
};

struct Request {
  std::vector<std::int32_t> prompt;
  std::int64_t max_new_tokens = -1;   // < 0: up to the context
  std::vector<std::int32_t> end_ids;  // the reply ends with any of these (kept as its last token)
  SamplingParams sampling;
  int num_logprobs = 0;  // > 0: logprobs of the chosen and of the best n tokens
};

struct TokenEvent {
  SequenceId sequence = 0;
  std::int32_t token = 0;
  std::optional<FinishReason> finish;      // set on a sequence's last event
  float logprob = 0;                       // when asked for
  std::vector<TokenLogprob> top_logprobs;  // falling; when asked for
};

class Engine {
 public:
  // `backend` must outlive the engine. Throws Capacity where it does not fit.
  Engine(Backend& backend, Model model, const EngineOptions& options);

  // Throws Usage or Capacity as Scheduler::submit, Data for an id outside the vocabulary.
  SequenceId submit(Request request);

  // Runs one step and returns its new tokens; none for a prefill pass that does not end a prompt.
  // Throws Runtime (sequence position and step named) where logits are not finite; the sequence is
  // cancelled first, so that the engine stays usable.
  std::span<const TokenEvent> step();

  void cancel(SequenceId id);
  [[nodiscard]] bool idle() const { return scheduler_.idle(); }
  [[nodiscard]] int context_tokens() const { return options_.context_tokens; }
  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] std::size_t kv_cache_bytes() const { return cache_.bytes(); }

 private:
  void sample(const Batch& batch);
  void add_logprobs(const Batch& batch, std::size_t row, TokenEvent& event) const;

  Backend& backend_;
  Model model_;
  EngineOptions options_;
  Scheduler scheduler_;
  KvCache cache_;
  Workspace workspace_;
  std::map<SequenceId, Request> requests_;
  std::vector<std::int32_t> sampled_;
  std::vector<TokenEvent> events_;
};

}  // namespace fut
