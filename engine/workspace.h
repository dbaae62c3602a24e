// Activations and step state at addresses that never change, sized once from the limits.
#pragma once

#include <vector>

#include "engine/precision.h"
#include "engine/scheduler.h"
#include "kernels/backend.h"
#include "kernels/numeric/rope_table.h"
#include "loader/model_config.h"

namespace fut {

struct WorkspaceLimits {
  int max_tokens = 0;     // of a step of prefill
  int max_sequences = 0;  // of a step of either kind; the tokens of one of decode
  int max_logit_rows = 0;
  int max_pages = 0;       // page-table entries of one step
  int context_tokens = 0;  // rows of the rope table
};

class Workspace {
 public:
  Workspace(Backend& backend, const ModelConfig& config, Precision precision, KvCacheDtype kv_dtype,
            const WorkspaceLimits& limits);

  // What such a workspace allocates.
  [[nodiscard]] static std::size_t bytes(const ModelConfig& config, Precision precision,
                                         KvCacheDtype kv_dtype, const WorkspaceLimits& limits);

  // Copies a step's arrays to the device; the views below have its types and rows from then on.
  // Throws Runtime when a limit is exceeded.
  void upload(Backend& backend, const Batch& batch);
  // Other rows of the same step's tokens for the head.
  void upload_logit_rows(Backend& backend, const std::vector<std::int32_t>& rows);

  // The same step once more, when sequences have become longer: no less than any of their lengths.
  void set_longest_context(int tokens) { batch_.longest_context = tokens; }

  // What changes from one decode step to the next; device memory, one element a sequence.
  struct Advancing {
    std::int32_t *token_ids, *positions, *kv_lengths;
  };
  [[nodiscard]] Advancing advancing() const {
    return {token_ids_.as<std::int32_t>(), positions_.as<std::int32_t>(),
            kv_lengths_.as<std::int32_t>()};
  }

  [[nodiscard]] StepKind kind() const { return kind_; }
  [[nodiscard]] const RaggedBatch& batch() const { return batch_; }
  [[nodiscard]] const std::int32_t* logit_rows() const { return logit_rows_.as<std::int32_t>(); }
  // Views with as many rows as the uploaded step has tokens (logits: logit rows).
  [[nodiscard]] ActivationView residual() const;
  [[nodiscard]] ActivationView query() const;
  [[nodiscard]] ActivationView key() const;  // key and value: with an INT4 cache alone
  [[nodiscard]] ActivationView value() const;
  [[nodiscard]] ActivationView attention() const;
  [[nodiscard]] ActivationView ffn() const;
  // [tokens]; null where the step's ffn has no exponents.
  [[nodiscard]] std::int32_t* ffn_exponents() const;
  [[nodiscard]] MatrixView<float> logits() const;
  [[nodiscard]] const float* rope_cos() const { return rope_cos_.as<float>(); }
  [[nodiscard]] const float* rope_sin() const { return rope_sin_.as<float>(); }
  [[nodiscard]] int rope_positions() const { return limits_.context_tokens; }

 private:
  struct Allocation {
    DeviceBuffer Workspace::*buffer;
    std::size_t bytes;
  };
  [[nodiscard]] static std::vector<Allocation> allocations(const ModelConfig& config,
                                                           Precision precision,
                                                           KvCacheDtype kv_dtype,
                                                           const WorkspaceLimits& limits);
  [[nodiscard]] ActivationView view(const DeviceBuffer& buffer, DType dtype,
                                    std::int64_t cols) const;

  ModelConfig config_;
  Precision precision_;
  KvCacheDtype kv_dtype_;
  WorkspaceLimits limits_;
  StepKind kind_ = StepKind::Prefill;
  StepTypes types_;
  RaggedBatch batch_;
  std::int64_t num_logit_rows_ = 0;
  DeviceBuffer token_ids_, positions_, q_indptr_, kv_indptr_, page_table_, kv_lengths_, raw_slots_,
      logit_rows_;
  // Each as large as the types of either kind of step need it.
  DeviceBuffer residual_, query_, key_, value_, attention_, ffn_, ffn_exponents_, logits_;
  DeviceBuffer rope_cos_, rope_sin_;
};

}  // namespace fut
