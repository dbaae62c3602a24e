// The step loop: batch, upload, forward, sample, commit.
#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/forward.h"
#include "engine/token_ids.h"
#include "kernels/check.h"

namespace fut {
namespace {

EngineOptions resolve(EngineOptions options, const ModelConfig& config) {
  FUT_CHECK(options.steps_ahead >= 0 && options.steps_ahead <= DecodeLoop::kMostAhead,
            "{} steps ahead, {} at most", options.steps_ahead, DecodeLoop::kMostAhead);
  options.context_tokens = resolve_context_tokens(config, options.context_tokens);
  return options;
}
SchedulerLimits scheduler_limits(const EngineOptions& o) {
  SchedulerLimits limits;
  limits.context_tokens = o.context_tokens;
  limits.max_sequences = o.max_sequences;
  limits.prefill_chunk = o.prefill_chunk;
  // As many as there can be of all sequences, within the budget, and always one's own.
  const std::int64_t longest = std::min(o.prefill_chunk, o.context_tokens);
  const std::int64_t budget = o.pass_tokens > 0 ? o.pass_tokens : kDefaultPassTokens;
  limits.max_prefill_tokens =
      static_cast<int>(std::max(longest, std::min(budget, longest * o.max_sequences)));
  limits.num_pages = static_cast<int>(layout::pages_for_tokens(o.context_tokens)) * o.max_sequences;
  return limits;
}

WorkspaceLimits workspace_limits(const EngineOptions& o) {
  const SchedulerLimits s = scheduler_limits(o);
  WorkspaceLimits limits;
  limits.max_tokens = s.max_prefill_tokens;
  limits.max_sequences = o.max_sequences;
  limits.max_logit_rows = o.max_sequences;
  limits.max_pages = s.num_pages;
  limits.context_tokens = o.context_tokens;
  return limits;
}

}  // namespace

int resolve_context_tokens(const ModelConfig& config, int wanted) {
  const int most = config.max_position_embeddings;
  if (wanted == 0) wanted = std::min(most, kDefaultContextTokens);
  if (wanted < kLeastContextTokens || wanted > most) {
    throw usage_error(
        "-c: a context of {} tokens was asked for; allowed are {} to {}, the positions that the "
        "model "
        "was made for (max_position_embeddings in config.json)",
        wanted, kLeastContextTokens, most);
  }
  return wanted;
}

EngineBytes engine_bytes(const ModelConfig& config, Precision precision,
                         const EngineOptions& options) {
  const EngineOptions o = resolve(options, config);
  const KvCacheBytes cache =
      kv_cache_bytes(config, o.kv_cache, scheduler_limits(o).num_pages, o.max_sequences);
  return {cache.pool + cache.raw,
          Workspace::bytes(config, precision, o.kv_cache.dtype, workspace_limits(o)) +
              SampleBuffers::bytes(o.max_sequences, o.context_tokens) +
              DecodeLoop::device_bytes(o.max_sequences),
          DecodeLoop::shared_bytes(o.max_sequences),
          o.kv_cache.dtype == KvCacheDtype::Int4
              ? layout::widened_history_bytes({config.num_kv_heads, config.head_dim},
                                              scheduler_limits(o).num_pages)
              : 0,
          // Of the type of what attention gives its reader.
          static_cast<std::size_t>(scheduler_limits(o).max_prefill_tokens) *
              static_cast<std::size_t>(config.hidden_size) *
              static_cast<std::size_t>(dtype_bytes(
                  step_types(precision, StepKind::Prefill, o.kv_cache.dtype).attention))};
}

Engine::Engine(Backend& backend, Model model, const EngineOptions& options)
    : backend_(backend),
      model_(std::move(model)),
      options_(resolve(options, model_.config())),
      scheduler_(scheduler_limits(options_)),
      cache_(backend, model_.config(), options_.kv_cache, scheduler_limits(options_).num_pages,
             options_.max_sequences),
      workspace_(backend, model_.config(), model_.precision(), options_.kv_cache.dtype,
                 workspace_limits(options_)),
      sample_buffers_(backend, options_.max_sequences, options_.context_tokens),
      decode_(backend, model_, cache_, workspace_, sample_buffers_, options_.max_sequences) {}

SequenceId Engine::submit(Request request) {
  const int vocab_size = model_.config().vocab_size;
  check_ids(request.prompt, vocab_size, "the prompt");
  for (const std::int32_t id : request.end_ids) {
    if (id >= 0 && id < vocab_size) continue;
    throw data_error(
        "eos token id {} is outside the vocabulary of {} ids: config.json, generation_config.json "
        "or "
        "tokenizer_config.json does not belong to these weights",
        id, vocab_size);
  }
  const SequenceId id = scheduler_.submit(request.prompt, request.max_new_tokens, request.end_ids,
                                          request.of_conversation);
  requests_.emplace(id, std::move(request));
  return id;
}

void Engine::cancel(SequenceId id) {
  scheduler_.cancel(id);
  requests_.erase(id);
}

void Engine::add_rows(const Batch& batch) {
  sample_buffers_.clear();
  for (const SequenceId id : batch.logit_sequences) {
    sample_buffers_.add(requests_.at(id).sampling, scheduler_.tokens(id));
  }
}

int Engine::steps_ahead() const {
  // Logits are those of the last step launched: who wants to see them keeps to one at a time.
  constexpr int kAhead = 2;
  const bool wanted =
      std::ranges::any_of(requests_, [](const auto& r) { return r.second.num_logprobs > 0; });
  if (wanted) return 1;
  if (options_.steps_ahead > 0) return options_.steps_ahead;
  return backend_.runs_ahead() ? kAhead : 1;
}

void Engine::prefill(const Batch& batch) {
  decode_.stop();
  workspace_.upload(backend_, batch);
  forward(backend_, model_, cache_, workspace_);
  std::vector<std::int32_t> tokens;
  if (!batch.logit_sequences.empty()) {
    add_rows(batch);
    tokens = sample_buffers_.draw(backend_, workspace_.logits());
  }
  finish_step(batch, tokens);
}

void Engine::start_decode(const Batch& batch) {
  add_rows(batch);
  std::vector<DecodeRow> rows;
  for (const SequenceId id : batch.sequences) {
    rows.push_back({scheduler_.remaining_tokens(id), requests_.at(id).end_ids});
  }
  decode_.start(batch, rows);
}

Batch Engine::committed(std::span<const std::int32_t> shown,
                        std::vector<std::int32_t>& tokens) const {
  Batch batch;
  batch.kind = StepKind::Decode;
  const std::span<const SequenceId> sequences = decode_.sequences();
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    const SequenceId id = sequences[row];
    if (!scheduler_.is_live(id) || shown[row] == kRowFinished) continue;
    batch.sequences.push_back(id);
    batch.kv_lengths.push_back(static_cast<std::int32_t>(scheduler_.tokens(id).size()));
    batch.logit_sequences.push_back(id);
    batch.logit_rows.push_back(static_cast<std::int32_t>(row));
    tokens.push_back(shown[row]);
  }
  return batch;
}

void Engine::add_time(StepKind kind, std::int64_t tokens) {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - *since_).count();
  since_ = now;
  if (kind == StepKind::Prefill) {
    times_.prompt_tokens += tokens;
    times_.prompt_seconds += seconds;
  } else {
    ++times_.decode_steps;
    times_.decode_tokens += tokens;
    times_.decode_seconds += seconds;
  }
}

EngineTimes Engine::times() const {
  EngineTimes times = times_;
  times.recordings = decode_.recordings();
  return times;
}

std::span<const TokenEvent> Engine::step() {
  events_.clear();
  if (!since_) since_ = Clock::now();
  run_step();
  if (idle()) since_.reset();
  return events_;
}

void Engine::run_step() {
  const Batch batch = scheduler_.next_batch();
  const bool goes_on = batch.kind == StepKind::Decode && decode_.runs(batch.sequences);
  if (decode_.outstanding() == 0 && !goes_on) {
    if (batch.empty()) return;
    if (batch.kind == StepKind::Prefill) {
      prefill(batch);
      return add_time(StepKind::Prefill, std::ssize(batch.token_ids));
    }
    start_decode(batch);
  }
  // Where others are to run, what is under way comes first: the cache holds its tokens already.
  if (decode_.outstanding() == 0 || goes_on) decode_.launch(steps_ahead());
  std::vector<std::int32_t> tokens;
  const Batch done = committed(decode_.wait(), tokens);
  finish_step(done, tokens);
  add_time(StepKind::Decode, std::ssize(tokens));
}

void Engine::finish_step(const Batch& batch, std::span<const std::int32_t> tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    TokenEvent event;
    event.sequence = batch.logit_sequences[i];
    event.token = tokens[i];
    event.position = static_cast<int>(scheduler_.tokens(event.sequence).size());
    event.reused_tokens = scheduler_.reused_tokens(event.sequence);
    const int num_logprobs = requests_.at(event.sequence).num_logprobs;
    if (event.token == kNoToken) {
      event.finish = FinishReason::Error;
    } else if (num_logprobs > 0) {
      const bool decode = batch.kind == StepKind::Decode;
      add_logprobs(decode ? batch.logit_rows[i] : static_cast<std::int64_t>(i), num_logprobs,
                   event);
    }
    events_.push_back(std::move(event));
  }
  for (const TokenEvent& event : events_) {
    if (event.finish) scheduler_.discard(event.sequence);
  }
  const auto reasons = scheduler_.commit(batch, tokens);
  for (std::size_t i = 0; i < events_.size(); ++i) {
    if (!events_[i].finish) events_[i].finish = reasons[i];
    if (events_[i].finish) requests_.erase(events_[i].sequence);
  }
}

void Engine::add_logprobs(std::int64_t logit_row, int num_logprobs, TokenEvent& event) {
  const MatrixView<float> logits = workspace_.logits();
  std::vector<float> row(static_cast<std::size_t>(logits.cols));
  backend_.download(std::as_writable_bytes(std::span(row)), logits.row(logit_row));
  const float maximum = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float v : row) sum += std::exp(static_cast<double>(v - maximum));
  const auto logprob = [&](std::int32_t id) {
    return static_cast<float>(static_cast<double>(row[static_cast<std::size_t>(id)] - maximum) -
                              std::log(sum));
  };
  std::vector<std::int32_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  const auto best = std::min(order.size(), static_cast<std::size_t>(num_logprobs));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(best), order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const float va = row[static_cast<std::size_t>(a)];
                      const float vb = row[static_cast<std::size_t>(b)];
                      return va != vb ? va > vb : a < b;
                    });
  event.logprob = logprob(event.token);
  for (std::size_t i = 0; i < best; ++i)
    event.top_logprobs.push_back({order[i], logprob(order[i])});
}

}  // namespace fut
