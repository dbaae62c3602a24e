// Runs a model folder on a backend the way tests need it: all logits of a prompt, greedy ids.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/forward.h"
#include "kernels/backend.h"

namespace fut::test {

class ModelRunner {
 public:
  // Loads the weights onto the CPU with `threads` (0: all cores), as stored.
  explicit ModelRunner(const std::filesystem::path& folder, int threads = 0);

  // Logits [tokens, vocab_size] of every position of one prompt, in one pass.
  [[nodiscard]] std::vector<std::vector<float>> logits(const std::vector<std::int32_t>& prompt);

  // The reply of an engine at temperature 0, end token included.
  [[nodiscard]] std::vector<std::int32_t> greedy(const std::vector<std::int32_t>& prompt,
                                                 int max_new_tokens,
                                                 const std::vector<std::int32_t>& end_ids);

  // exp of the mean negative log-likelihood of every token but the first of each window.
  [[nodiscard]] double perplexity(const std::vector<std::vector<std::int32_t>>& windows);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] Backend& backend() { return *backend_; }
  // A fresh copy of the weights, for an Engine of the test's own.
  [[nodiscard]] Model load_model() const;

 private:
  ModelConfig config_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

// Negative log-likelihood of `token` under one row of logits, in float64.
[[nodiscard]] double negative_log_likelihood(const std::vector<float>& logits, std::int32_t token);

}  // namespace fut::test
