// Runs a model folder on a backend the way tests need it: all logits of a prompt, greedy ids.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/forward.h"
#include "engine/perplexity.h"
#include "kernels/backend.h"

namespace fut::test {

// A cache of this type, everything else as the precision has it.
[[nodiscard]] KvCacheChoice cache_of(KvCacheDtype dtype);

// What a model is run with.
struct RunnerOptions {
  int threads = 0;  // 0: all cores
  Precision precision = Precision::F32;
  KvCacheChoice kv_cache = {};
  HeadChoice head = HeadChoice::Int8;
  PrefillWeights prefill = PrefillWeights::Fp8;
  int prefill_chunk = kDefaultPrefillChunk;  // of windows
  bool gpu = false;                          // for tests that have asked FUT_REQUIRE_GPU_DEVICE()
  bool tensor_core_sums = false;             // the CPU, but for products of E4M3
  bool record_graphs = true;                 // as in DeviceRequest, as what follows
  int long_context = 0;
};

class ModelRunner {
 public:
  // Opens a checkpoint, or a quantised folder where the precision is a quantised one.
  explicit ModelRunner(const std::filesystem::path& folder, const RunnerOptions& options = {});

  // Logits [tokens, vocab_size] of every position of one prompt, in one pass.
  [[nodiscard]] std::vector<std::vector<float>> logits(const std::vector<std::int32_t>& prompt);

  // The reply of an engine at temperature 0, end token included.
  [[nodiscard]] std::vector<std::int32_t> greedy(const std::vector<std::int32_t>& prompt,
                                                 int max_new_tokens,
                                                 const std::vector<std::int32_t>& end_ids);

  // The windows' scores on one path of the engine, and beside those of another model.
  [[nodiscard]] PerplexityResult score(const TokenWindows& windows, StepKind path,
                                       const ModelRunner* against = nullptr) const;

  // Logits of every position of each window but its last, on one path of the engine.
  [[nodiscard]] std::vector<std::vector<std::vector<float>>> window_logits(
      const TokenWindows& windows, StepKind path, int lock_step = 16) const;

  // exp of the mean negative log-likelihood of every token but the first of each window.
  [[nodiscard]] double perplexity(const std::vector<std::vector<std::int32_t>>& windows);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] Backend& backend() { return *backend_; }
  // A fresh copy of the weights, for an Engine of the test's own, and the cache that goes with it.
  [[nodiscard]] Model load_model() const;
  [[nodiscard]] const KvCacheOptions& kv_cache() const { return kv_cache_; }

 private:
  RunnerOptions options_;
  ModelConfig config_;
  std::unique_ptr<Backend> backend_;
  KvCacheOptions kv_cache_;
  std::unique_ptr<Checkpoint> checkpoint_;  // one of the two
  std::unique_ptr<PackedModel> packed_;
};

// Negative log-likelihood of `token` under one row of logits, in float64.
[[nodiscard]] double negative_log_likelihood(const std::vector<float>& logits, std::int32_t token);

}  // namespace fut::test
