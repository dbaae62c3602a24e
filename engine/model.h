// The weights in a backend's memory, as the checkpoint stores them. Const after load.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/backend.h"
#include "loader/checkpoint.h"

namespace fut {

struct LayerWeights {
  const float* input_layernorm = nullptr;
  WeightMatrix q_proj, k_proj, v_proj, o_proj;
  const float* post_attention_layernorm = nullptr;
  WeightMatrix gate_proj, up_proj, down_proj;
};

// Bytes done and bytes in all, for a progress line.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

class Model {
 public:
  // One allocation for everything. Norm gains are widened to float32, matrices keep their type.
  // Throws Data for weights that are not finite when check_finite is set (tensor and position).
  static Model load(Backend& backend, const Checkpoint& checkpoint, const ModelConfig& config,
                    const Progress& progress = {}, bool check_finite = false);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const LayerWeights& layer(int i) const {
    return layers_[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] const WeightMatrix& embed_tokens() const { return embed_tokens_; }
  [[nodiscard]] const float* final_norm() const { return final_norm_; }
  [[nodiscard]] const WeightMatrix& lm_head() const { return lm_head_; }
  [[nodiscard]] std::size_t bytes() const { return arena_.bytes(); }

 private:
  Model() = default;
  ModelConfig config_;
  DeviceBuffer arena_;
  std::vector<LayerWeights> layers_;
  WeightMatrix embed_tokens_;
  const float* final_norm_ = nullptr;
  WeightMatrix lm_head_;
};

}  // namespace fut
