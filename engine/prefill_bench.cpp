// See the header.
#include "engine/prefill_bench.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <numeric>

#include "engine/engine.h"

namespace fut {
namespace {

constexpr int kMixedPrompts = 17;
constexpr int kShortest = 30, kLongest = 3000;

// Evenly from the shortest to the longest, in an order that puts long ones beside short ones.
std::vector<int> mixed_lengths() {
  constexpr int kStride = 7;  // has no factor in common with their number
  std::vector<int> lengths;
  for (int i = 0; i < kMixedPrompts; ++i) {
    const int place = i * kStride % kMixedPrompts;
    lengths.push_back(kShortest + (kLongest - kShortest) * place / (kMixedPrompts - 1));
  }
  return lengths;
}

bool parse_positive(std::string_view text, int& value) {
  const char* end = text.data() + text.size();
  return std::from_chars(text.data(), end, value).ptr == end && value > 0;
}

int context_of(const PromptPack& pack) {
  // The reply's first token comes behind it.
  return *std::max_element(pack.lengths.begin(), pack.lengths.end()) + 1;
}

std::vector<std::int32_t> made_up_prompt(int tokens, int salt, int vocab_size) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
  for (int i = 0; i < tokens; ++i) {
    ids[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>((std::int64_t{7919} * i + 104729LL * salt) % vocab_size);
  }
  return ids;
}

SchedulerLimits scheduler_limits(const PromptPack& pack, int chunk, std::int64_t step_tokens) {
  SchedulerLimits limits;
  limits.context_tokens = context_of(pack);
  limits.max_sequences = static_cast<int>(pack.lengths.size());
  limits.prefill_chunk = chunk;
  limits.max_prefill_tokens = static_cast<int>(step_tokens);
  limits.num_pages =
      static_cast<int>(layout::pages_for_tokens(limits.context_tokens)) * limits.max_sequences;
  return limits;
}

// A scheduler that has them all.
Scheduler waiting(const PromptPack& pack, int chunk, std::int64_t step_tokens, int vocab_size) {
  Scheduler scheduler(scheduler_limits(pack, chunk, step_tokens));
  for (std::size_t i = 0; i < pack.lengths.size(); ++i) {
    const auto salt = static_cast<int>(i);
    scheduler.submit(made_up_prompt(pack.lengths[i], salt, vocab_size), 1, {});
  }
  return scheduler;
}

Batch one_pass(const PromptPack& pack, int vocab_size) {
  const auto pages = layout::pages_for_tokens(context_of(pack));
  const auto chunk = static_cast<int>(pages * layout::kPageTokens);
  return waiting(pack, chunk, std::max<std::int64_t>(pack.tokens(), chunk), vocab_size)
      .next_batch();
}

WorkspaceLimits limits_for(const PromptPack& pack) {
  const SchedulerLimits s = scheduler_limits(pack, layout::kPageTokens, pack.tokens() + 1);
  WorkspaceLimits limits;
  limits.max_tokens = static_cast<int>(pack.tokens());
  limits.max_sequences = limits.max_logit_rows = s.max_sequences;
  limits.max_pages = s.num_pages;
  limits.context_tokens = s.context_tokens;
  return limits;
}

}  // namespace

std::int64_t PromptPack::tokens() const {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

PromptPack parse_prompt_pack(std::string_view text) {
  PromptPack pack{std::string(text), {}};
  if (text == kMixedPack || text == kEqualPack) {
    pack.lengths = mixed_lengths();
    if (text == kEqualPack) {
      pack.lengths.assign(kMixedPrompts, static_cast<int>(pack.tokens() / kMixedPrompts));
    }
    return pack;
  }
  const std::size_t cross = text.find('x');
  int count = 1, tokens = 0;
  const bool has_count = cross != std::string_view::npos;
  if (has_count && !parse_positive(text.substr(0, cross), count)) return pack;
  if (!parse_positive(has_count ? text.substr(cross + 1) : text, tokens)) return pack;
  constexpr std::int64_t kMostTokens = 1 << 20;
  if (std::int64_t{count} * tokens > kMostTokens) return pack;
  pack.lengths.assign(static_cast<std::size_t>(count), tokens);
  return pack;
}

PrefillBench::PrefillBench(Backend& backend, const Model& model, const PrefillBenchOptions& options)
    : backend_(backend),
      model_(model),
      options_(options),
      cache_(backend, model.config(), options.kv_cache, limits_for(options.pack).max_pages,
             limits_for(options.pack).max_sequences),
      workspace_(backend, model.config(), model.precision(), options.kv_cache.dtype,
                 limits_for(options.pack)),
      sample_buffers_(backend, limits_for(options.pack).max_sequences, context_of(options.pack)) {
  cache_.clear(backend);
  upload_pass();
}

void PrefillBench::upload_pass() {
  workspace_.upload(backend_, one_pass(options_.pack, model_.config().vocab_size));
  sample_buffers_.clear();
  for (std::size_t i = 0; i < options_.pack.lengths.size(); ++i) {
    sample_buffers_.add(options_.sampling, {});
  }
  sample_buffers_.upload(backend_);
}

void PrefillBench::sample() {
  sample_buffers_.launch(backend_, workspace_.logits());
}

Backend::Procedure PrefillBench::step() {
  return backend_.capture([this] {
    forward(backend_, model_, cache_, workspace_);
    sample();
  });
}

Backend::Procedure PrefillBench::layers() {
  return backend_.capture([this] { forward_layers(backend_, model_, cache_, workspace_); });
}

double PrefillBench::seconds_to_first_tokens() {
  const PromptPack& pack = options_.pack;
  backend_.synchronize();
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t pass = std::min(kDefaultPrefillChunk, context_of(pack));
  const std::int64_t budget = std::min<std::int64_t>(kDefaultPassTokens, pack.tokens());
  Scheduler scheduler =
      waiting(pack, kDefaultPrefillChunk, std::max(pass, budget), model_.config().vocab_size);
  while (!scheduler.idle()) {
    const Batch batch = scheduler.next_batch();
    workspace_.upload(backend_, batch);
    forward(backend_, model_, cache_, workspace_);
    std::vector<std::int32_t> tokens;
    if (!batch.logit_sequences.empty()) {
      sample_buffers_.clear();
      for (const SequenceId id : batch.logit_sequences) {
        sample_buffers_.add(options_.sampling, scheduler.tokens(id));
      }
      tokens = sample_buffers_.draw(backend_, workspace_.logits());
    }
    scheduler.commit(batch, tokens);
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  upload_pass();
  return taken.count();
}

}  // namespace fut
