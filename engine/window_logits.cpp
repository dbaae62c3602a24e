// Steps over windows, without a scheduler: nothing arrives, nothing ends early.
#include "engine/window_logits.h"

#include <algorithm>

#include "kernels/check.h"

namespace fut {
namespace {

// Rows of logits at a time: for 128,256 ids 64 rows are 33 MB.
constexpr int kHeadRows = 64;

WorkspaceLimits limits_for(const ScoringOptions& options, int window_tokens) {
  const bool decode = options.path == StepKind::Decode;
  WorkspaceLimits limits;
  limits.max_sequences = decode ? options.lock_step : 1;
  limits.max_tokens = decode ? options.lock_step : std::min(options.prefill_chunk, window_tokens);
  limits.max_logit_rows = decode ? options.lock_step : kHeadRows;
  limits.max_pages =
      static_cast<int>(layout::pages_for_tokens(window_tokens)) * limits.max_sequences;
  limits.context_tokens = window_tokens;
  return limits;
}

}  // namespace

WindowLogits::WindowLogits(const ScoredModel& scored, int window_tokens)
    : backend_(*scored.backend),
      model_(*scored.model),
      options_(scored.options),
      window_tokens_(static_cast<std::size_t>(window_tokens)),
      cache_(backend_, model_.config(), options_.kv_cache,
             limits_for(options_, window_tokens).max_pages,
             limits_for(options_, window_tokens).max_sequences),
      workspace_(backend_, model_.config(), model_.precision(), options_.kv_cache.dtype,
                 limits_for(options_, window_tokens)) {}

std::size_t WindowLogits::group_size() const {
  return options_.path == StepKind::Decode ? static_cast<std::size_t>(options_.lock_step) : 1;
}

void WindowLogits::start(std::span<const std::vector<std::int32_t>> group) {
  FUT_CHECK(group.size() <= group_size(), "{} windows in a group of {}", group.size(),
            group_size());
  group_ = group;
  done_ = 0;
  rows_done_ = 0;
}

Batch WindowLogits::step_batch(std::size_t first, std::size_t count) const {
  const std::int64_t pages_each =
      layout::pages_for_tokens(static_cast<std::int64_t>(window_tokens_));
  Batch batch;
  batch.kind = options_.path;
  batch.q_indptr.push_back(0);
  batch.kv_indptr.push_back(0);
  for (std::size_t w = 0; w < group_.size(); ++w) {
    batch.sequences.push_back(static_cast<SequenceId>(w));
    for (std::size_t t = first; t < first + count; ++t) {
      batch.token_ids.push_back(group_[w][t]);
      batch.positions.push_back(static_cast<std::int32_t>(t));
    }
    batch.q_indptr.push_back(static_cast<std::int32_t>(batch.token_ids.size()));
    const auto length = static_cast<std::int64_t>(first + count);
    for (std::int64_t p = 0; p < layout::pages_for_tokens(length); ++p) {
      batch.page_table.push_back(
          static_cast<std::int32_t>(static_cast<std::int64_t>(w) * pages_each + p));
    }
    batch.kv_indptr.push_back(static_cast<std::int32_t>(batch.page_table.size()));
    batch.kv_lengths.push_back(static_cast<std::int32_t>(length));
    batch.raw_slots.push_back(static_cast<std::int32_t>(w));
  }
  return batch;
}

bool WindowLogits::next(LogitRows& rows) {
  rows.places.clear();
  return options_.path == StepKind::Decode ? next_decode(rows) : next_prefill(rows);
}

bool WindowLogits::next_decode(LogitRows& rows) {
  if (done_ + 1 >= window_tokens_) return false;
  Batch batch = step_batch(done_, 1);
  for (std::size_t w = 0; w < group_.size(); ++w) {
    batch.logit_rows.push_back(static_cast<std::int32_t>(w));
    rows.places.push_back({w, done_});
  }
  workspace_.upload(backend_, batch);
  forward(backend_, model_, cache_, workspace_);
  ++done_;
  fetch(rows);
  return true;
}

void WindowLogits::run_prefill_pass() {
  const auto chunk = static_cast<std::size_t>(options_.prefill_chunk);
  const std::size_t count = std::min(chunk, window_tokens_ - done_);
  workspace_.upload(backend_, step_batch(done_, count));
  forward(backend_, model_, cache_, workspace_);
  done_ += count;
}

bool WindowLogits::next_prefill(LogitRows& rows) {
  if (rows_done_ + 1 >= window_tokens_) return false;
  if (rows_done_ == done_) run_prefill_pass();
  const auto chunk = static_cast<std::size_t>(options_.prefill_chunk);
  const std::size_t pass_begin = (done_ - 1) / chunk * chunk;
  const std::size_t end = std::min({rows_done_ + kHeadRows, done_, window_tokens_ - 1});
  std::vector<std::int32_t> chosen;
  for (; rows_done_ < end; ++rows_done_) {
    chosen.push_back(static_cast<std::int32_t>(rows_done_ - pass_begin));
    rows.places.push_back({0, rows_done_});
  }
  workspace_.upload_logit_rows(backend_, chosen);
  forward_head(backend_, model_, workspace_);
  fetch(rows);
  return true;
}

void WindowLogits::fetch(LogitRows& rows) {
  const MatrixView<float> logits = workspace_.logits();
  host_rows_.resize(static_cast<std::size_t>(logits.rows * logits.cols));
  backend_.download(std::as_writable_bytes(std::span(host_rows_)), logits.data);
  rows.logits = {host_rows_.data(), logits.rows, logits.cols, logits.cols};
}

}  // namespace fut
