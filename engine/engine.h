// Token ids in, token ids out, for any number of sequences at a time. Owns model, cache and
// scheduler; single-threaded: callers loop over step().
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "engine/decode_loop.h"
#include "engine/kv_cache.h"
#include "engine/model.h"
#include "engine/sampling.h"
#include "engine/scheduler.h"
#include "engine/workspace.h"

namespace fut {

// Enough for a long talk, and a bound on what the cache takes when nobody chose: Llama-3.1-8B's own
// 131,072 tokens would want 32 GiB in float32.
inline constexpr int kDefaultContextTokens = 8192;

inline constexpr int kLeastContextTokens = 2;  // one of the prompt, one of the reply

// The context that an engine will have: `wanted`, or where that is 0 the model's own, at most
// kDefaultContextTokens. Throws Usage where it is outside kLeastContextTokens .. the model's own.
[[nodiscard]] int resolve_context_tokens(const ModelConfig& config, int wanted);

// Tokens of several prompts that go in one pass: enough for the best rate, and a bound on how long an
// interrupt waits and on what activations take.
inline constexpr int kDefaultPassTokens = 8192;

struct EngineOptions {
  int context_tokens = 0;  // of one sequence, as resolve_context_tokens takes it
  int max_sequences = 1;
  int prefill_chunk = kDefaultPrefillChunk;
  // Of several prompts in one pass, at most; 0: kDefaultPassTokens, or a chunk where that is more.
  int pass_tokens = 0;
  KvCacheOptions kv_cache;  // as resolve_kv_cache gives it
  // Decode steps that are launched before the oldest one's tokens are looked at, at most
  // DecodeLoop::kMostAhead; 0: two where the backend runs ahead, else one. Replies do not depend on it.
  int steps_ahead = 0;
};

// What an engine allocates beside its model.
struct EngineBytes {
  std::size_t kv_cache = 0;
  std::size_t workspace = 0;  // activations, tables, arrays of a step
  std::size_t shared = 0;     // with the host: no memory of a GPU
  std::size_t history = 0;    // GPU, INT4 cache: one layer's pages widened, with the first prompt
  std::size_t operands = 0;   // GPU: normalised rows of a pass, with the first prompt
};
// Throws as resolve_context_tokens.
[[nodiscard]] EngineBytes engine_bytes(const ModelConfig& config, Precision precision,
                                       const EngineOptions& options);

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;
};

struct Request {
  std::vector<std::int32_t> prompt;
  std::int64_t max_new_tokens = -1;   // < 0: up to the context
  std::vector<std::int32_t> end_ids;  // the reply ends with any of these (kept as its last token)
  SamplingParams sampling;
  int num_logprobs = 0;  // > 0: log-probabilities, before any sampling stage, of the chosen token
                         // and of the best n
  // Begins with what the last request of a conversation left in the cache, as far as both have the
  // same tokens (see scheduler.h), and leaves its own to the next one. Its bits then depend on what was
  // there: keys of a reply were computed by decode.
  bool of_conversation = false;
};

struct TokenEvent {
  SequenceId sequence = 0;
  std::int32_t token = 0;              // kNoToken where finish is Error: the logits were not finite
  int position = 0;                    // of the token in its sequence, prompt included
  std::optional<FinishReason> finish;  // set on a sequence's last event
  int reused_tokens = 0;               // of the prompt, those that were in the cache already
  float logprob = 0;                   // when asked for
  std::vector<TokenLogprob> top_logprobs;  // falling; when asked for
};

// Where an engine's time went since it was made. A step counts from the end of the one before it, so what
// callers do between them is part of it.
struct EngineTimes {
  std::int64_t prompt_tokens = 0;
  double prompt_seconds = 0;
  std::int64_t decode_steps = 0;
  std::int64_t decode_tokens = 0;
  double decode_seconds = 0;  // recording included
  DecodeLoop::Recordings recordings;
};

class Engine {
 public:
  // `backend` must outlive the engine. Throws as resolve_context_tokens, and Capacity where it does
  // not fit.
  Engine(Backend& backend, Model model, const EngineOptions& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Throws Usage or Capacity as Scheduler::submit, Data for a prompt or end id outside the
  // vocabulary.
  SequenceId submit(Request request);

  // Gives one step's new tokens; none for a prefill pass that does not end a prompt. A sequence whose
  // logits are not finite ends with FinishReason::Error; the others go on. Steps after it may be under
  // way on the device already: their tokens are the ones that come next, whatever is submitted or
  // cancelled meanwhile.
  std::span<const TokenEvent> step();

  void cancel(SequenceId id);
  [[nodiscard]] bool idle() const { return scheduler_.idle(); }
  [[nodiscard]] int context_tokens() const { return options_.context_tokens; }
  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] EngineTimes times() const;

 private:
  using Clock = std::chrono::steady_clock;

  void run_step();
  void add_time(StepKind kind, std::int64_t tokens);
  void add_rows(const Batch& batch);
  [[nodiscard]] int steps_ahead() const;
  // Runs a prefill pass; its new tokens.
  void prefill(const Batch& batch);
  void start_decode(const Batch& batch);
  // Turns the tokens of a step into events. Rows whose sequence is gone are passed over.
  void finish_step(const Batch& batch, std::span<const std::int32_t> tokens);
  // What the scheduler has to know of a step of the loop: those of its rows that still count.
  [[nodiscard]] Batch committed(std::span<const std::int32_t> shown,
                                std::vector<std::int32_t>& tokens) const;
  void add_logprobs(std::int64_t logit_row, int num_logprobs, TokenEvent& event);

  Backend& backend_;
  Model model_;
  EngineOptions options_;
  Scheduler scheduler_;
  KvCache cache_;
  Workspace workspace_;
  SampleBuffers sample_buffers_;
  DecodeLoop decode_;
  std::map<SequenceId, Request> requests_;  // of live sequences
  std::vector<TokenEvent> events_;          // of the last step
  EngineTimes times_;
  std::optional<Clock::time_point> since_;  // the end of the last step, where another was to follow
};

}  // namespace fut
