// See the header.
#include "tests/support/model_runner.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/window_logits.h"
#include "tests/support/tensor_core_sums.h"

namespace fut::test {
namespace {

// One prompt as one prefill step that asks for every row's logits.
Batch whole_prompt(const std::vector<std::int32_t>& prompt) {
  const auto n = static_cast<std::int32_t>(prompt.size());
  Batch batch;
  batch.sequences = {1};
  batch.token_ids = prompt;
  batch.positions.resize(prompt.size());
  std::iota(batch.positions.begin(), batch.positions.end(), 0);
  batch.q_indptr = {0, n};
  batch.page_table.resize(static_cast<std::size_t>(layout::pages_for_tokens(n)));
  std::iota(batch.page_table.begin(), batch.page_table.end(), 0);
  batch.kv_indptr = {0, static_cast<std::int32_t>(batch.page_table.size())};
  batch.kv_lengths = {n};
  batch.raw_slots = {0};
  batch.logit_rows = batch.positions;
  return batch;
}

}  // namespace

KvCacheChoice cache_of(KvCacheDtype dtype) {
  KvCacheChoice choice;
  choice.has_dtype = true;
  choice.dtype = dtype;
  return choice;
}

ModelRunner::ModelRunner(const std::filesystem::path& folder, const RunnerOptions& options)
    : options_(options), config_(load_model_config(folder)) {
  std::string notice;
  DeviceRequest request;
  request.kind = options.gpu ? DeviceRequest::Kind::Cuda : DeviceRequest::Kind::Cpu;
  request.cpu_threads = options.threads;
  request.record_graphs = options.record_graphs;
  request.long_context = options.long_context;
  backend_ = options.tensor_core_sums ? backend_with_tensor_core_sums(options.threads)
                                      : make_backend(request, notice);
  kv_cache_ = resolve_kv_cache(config_, options.precision, options.kv_cache);
  if (is_quantized(options.precision)) {
    packed_ = std::make_unique<PackedModel>(PackedModel::open(folder, config_));
  } else {
    checkpoint_ = std::make_unique<Checkpoint>(Checkpoint::open(folder, config_));
  }
}

Model ModelRunner::load_model() const {
  if (packed_) {
    return Model::load_packed(*backend_, *packed_, config_, options_.precision, options_.head, {},
                              {}, nullptr, options_.prefill);
  }
  return Model::load(*backend_, *checkpoint_, config_, options_.precision);
}

std::vector<std::vector<std::vector<float>>> ModelRunner::window_logits(const TokenWindows& windows,
                                                                        StepKind path,
                                                                        int lock_step) const {
  const Model model = load_model();
  ScoringOptions options;
  options.path = path;
  options.kv_cache = kv_cache_;
  options.prefill_chunk = options_.prefill_chunk;
  options.lock_step = lock_step;
  WindowLogits source({backend_.get(), &model, options}, static_cast<int>(windows[0].size()));
  std::vector<std::vector<std::vector<float>>> result(windows.size());
  for (std::size_t first = 0; first < windows.size(); first += source.group_size()) {
    const std::size_t count = std::min(source.group_size(), windows.size() - first);
    source.start(std::span(windows).subspan(first, count));
    LogitRows rows;
    while (source.next(rows)) {
      for (std::size_t i = 0; i < rows.places.size(); ++i) {
        const float* row = rows.logits.row(static_cast<std::int64_t>(i));
        result[first + rows.places[i].window].emplace_back(row, row + rows.logits.cols);
      }
    }
  }
  return result;
}

PerplexityResult ModelRunner::score(const TokenWindows& windows, StepKind path,
                                    const ModelRunner* against) const {
  const auto scored = [path](const ModelRunner& runner, const Model& model) {
    ScoringOptions options;
    options.path = path;
    options.kv_cache = runner.kv_cache_;
    options.prefill_chunk = runner.options_.prefill_chunk;
    return ScoredModel{runner.backend_.get(), &model, options};
  };
  const Model model = load_model();
  if (against == nullptr) return score_windows(scored(*this, model), windows);
  const Model other = against->load_model();
  const ScoredModel other_scored = scored(*against, other);
  return score_windows(scored(*this, model), windows, &other_scored);
}

std::vector<std::vector<float>> ModelRunner::logits(const std::vector<std::int32_t>& prompt) {
  const Batch batch = whole_prompt(prompt);
  const auto tokens = static_cast<int>(prompt.size());
  const auto pages = static_cast<int>(batch.page_table.size());
  const Model model = load_model();
  KvCache cache(*backend_, config_, kv_cache_, pages, 1);
  Workspace workspace(*backend_, config_, options_.precision, kv_cache_.dtype,
                      {tokens, 1, tokens, pages, tokens});
  workspace.upload(*backend_, batch);
  forward(*backend_, model, cache, workspace);
  const MatrixView<float> out = workspace.logits();
  std::vector<std::vector<float>> rows(prompt.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].resize(static_cast<std::size_t>(out.cols));
    backend_->download(std::as_writable_bytes(std::span(rows[i])),
                       out.row(static_cast<std::int64_t>(i)));
  }
  return rows;
}

std::vector<std::int32_t> ModelRunner::greedy(const std::vector<std::int32_t>& prompt,
                                              int max_new_tokens,
                                              const std::vector<std::int32_t>& end_ids) {
  EngineOptions engine_options;
  engine_options.kv_cache = kv_cache_;
  Engine engine(*backend_, load_model(), engine_options);
  Request request;
  request.prompt = prompt;
  request.max_new_tokens = max_new_tokens;
  request.end_ids = end_ids;
  request.sampling.sample.temperature = 0;
  engine.submit(request);
  std::vector<std::int32_t> ids;
  while (!engine.idle()) {
    for (const TokenEvent& event : engine.step()) ids.push_back(event.token);
  }
  return ids;
}

double ModelRunner::perplexity(const std::vector<std::vector<std::int32_t>>& windows) {
  double sum = 0;
  std::size_t scored = 0;
  for (const auto& window : windows) {
    const auto rows = logits(window);
    for (std::size_t t = 1; t < window.size(); ++t) {
      sum += negative_log_likelihood(rows[t - 1], window[t]);
      ++scored;
    }
  }
  return std::exp(sum / static_cast<double>(scored));
}

double negative_log_likelihood(const std::vector<float>& logits, std::int32_t token) {
  const double maximum = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v) - maximum);
  return std::log(sum) - (static_cast<double>(logits[static_cast<std::size_t>(token)]) - maximum);
}

}  // namespace fut::test
