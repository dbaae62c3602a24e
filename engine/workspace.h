// Activations and step state at addresses that never change, sized once from the limits.
#pragma once

#include <vector>

#include "engine/scheduler.h"
#include "kernels/backend.h"
#include "kernels/numeric/rope_table.h"
#include "loader/model_config.h"

namespace fut {

struct WorkspaceLimits {
  int max_tokens = 0;  // of one step
  int max_sequences = 0;
  int max_logit_rows = 0;
  int max_pages = 0;       // page-table entries of one step
  int context_tokens = 0;  // rows of the rope table
};

class Workspace {
 public:
  Workspace(Backend& backend, const ModelConfig& config, const WorkspaceLimits& limits);

  // Copies a step's arrays to the device. Throws Runtime when a limit is exceeded.
  void upload(Backend& backend, const Batch& batch);

  [[nodiscard]] const RaggedBatch& batch() const { return batch_; }
  [[nodiscard]] const std::int32_t* logit_rows() const;
  // Views with as many rows as the uploaded step has tokens (logits: logit rows).
  [[nodiscard]] MatrixView<float> residual() const;
  [[nodiscard]] MatrixView<float> query() const;
  [[nodiscard]] MatrixView<float> attention() const;
  [[nodiscard]] MatrixView<float> ffn() const;
  [[nodiscard]] MatrixView<float> logits() const;
  [[nodiscard]] const float* rope_cos() const { return rope_cos_.as<float>(); }
  [[nodiscard]] const float* rope_sin() const { return rope_sin_.as<float>(); }
  [[nodiscard]] int rope_positions() const { return limits_.context_tokens; }

 private:
  ModelConfig config_;
  WorkspaceLimits limits_;
  RaggedBatch batch_;
  std::int64_t num_logit_rows_ = 0;
  DeviceBuffer token_ids_, positions_, q_indptr_, kv_indptr_, page_table_, kv_lengths_, logit_rows_;
  DeviceBuffer residual_, query_, attention_, ffn_, logits_;
  DeviceBuffer rope_cos_, rope_sin_;
};

}  // namespace fut
