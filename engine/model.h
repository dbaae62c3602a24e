// The weights in a backend's memory, in the form that a precision computes with. Const after load.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/precision.h"
#include "kernels/backend.h"
#include "kernels/check.h"
#include "loader/checkpoint.h"
#include "loader/packed_model.h"
#include "loader/packed_tensors.h"

namespace fut {

struct LayerWeights {
  const float* input_layernorm = nullptr;  // null: folded into the weights
  QkvWeights qkv_proj;
  Weights o_proj;
  const float* post_attention_layernorm = nullptr;
  GateUpWeights gate_up_proj;
  Weights down_proj;
  // FP8: frozen powers of two.
  const float* attention_output_scales = nullptr;  // [num_kv_heads], in the backend's memory
  float swiglu_output_scale = 1;
};

// Bytes done and bytes in all, for a progress line.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

// Where the time of loading a quantised folder went.
struct LoadTimes {
  std::uint64_t bytes = 0;  // read
  double seconds = 0;
  // Of all threads together: in reading, in checksums, and until the device had taken what was sent.
  double read_seconds = 0;
  double checksum_seconds = 0;
  double wait_seconds = 0;

  void add(const LoadTimes& part) {
    read_seconds += part.read_seconds;
    checksum_seconds += part.checksum_seconds;
    wait_seconds += part.wait_seconds;
  }
};

// Which head of a quantised folder serves: INT8, BF16, or INT8 with the best logits computed once
// more from BF16.
enum class HeadChoice { Int8, Bf16, Int8Rescored };

// Steps that random weights are for.
enum class RandomFor { Decode, Prefill, Both };

class Model {
 public:
  // From a checkpoint, in one allocation. F32: matrices keep their type, gains are widened to
  // float32. Bf16: gains are folded into their readers and everything is rounded to BF16 once.
  // Throws Usage for a quantised precision; Data for weights that are not finite when check_finite
  // is set (tensor and position).
  static Model load(Backend& backend, const Checkpoint& checkpoint, const ModelConfig& config,
                    Precision precision = Precision::F32, const Progress& progress = {},
                    bool check_finite = false);

  // From a quantised folder: Fp8 takes the FP8 copies, Int4 both, or the INT4 ones alone. Progress is told
  // by one thread at a time. Throws Data where checksums disagree, Usage for F32 and Bf16. `times` may be
  // null.
  static Model load_packed(Backend& backend, const PackedModel& packed, const ModelConfig& config,
                           Precision precision, HeadChoice head = HeadChoice::Int8,
                           const Progress& progress = {}, const ParallelFor& parallel_for = {},
                           LoadTimes* times = nullptr,
                           PrefillWeights prefill = PrefillWeights::Fp8);

  // Weights that mean nothing, for measuring: random codes whose scales keep activations in range.
  // What those steps need, and no more; with `prefill` Int4, all of Int4. Throws Capacity; Data for a
  // shape that cannot be packed; Usage for F32.
  static Model make_random(Backend& backend, const ModelConfig& config, Precision precision,
                           RandomFor steps = RandomFor::Decode,
                           PrefillWeights prefill = PrefillWeights::Fp8);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] Precision precision() const { return precision_; }
  [[nodiscard]] const LayerWeights& layer(int i, StepKind kind) const {
    const auto& layers =
        kind == StepKind::Decode && !decode_layers_.empty() ? decode_layers_ : layers_;
    const auto at = static_cast<std::size_t>(i);
    FUT_CHECK(at < layers.size(), "layer {} of {}: the weights are of other steps", i,
              layers.size());
    return layers[at];
  }
  // Whether layer(i, Prefill) is one place for all layers, where expansion(i, matrix) has to be carried
  // out before a product reads it.
  [[nodiscard]] bool expands() const { return expanded_.bytes() > 0; }
  [[nodiscard]] ExpandArgs expansion(int i, PackedMatrix matrix) const;
  [[nodiscard]] const DenseMatrix& embed_tokens() const { return embed_tokens_; }
  [[nodiscard]] const float* final_norm() const { return final_norm_; }
  [[nodiscard]] const Weights& lm_head() const { return lm_head_; }
  // The BF16 head behind the INT8 one; data null: there is none.
  [[nodiscard]] const DenseMatrix& rescoring_head() const { return rescoring_head_; }
  [[nodiscard]] float operand_scale() const { return operand_scale_; }
  [[nodiscard]] std::size_t bytes() const { return arena_.bytes() + expanded_.bytes(); }

 private:
  friend class CheckpointLoading;
  friend class PackedLoading;
  friend class RandomWeights;
  Model() = default;
  // Gives all layers of prefill the place for expanded matrices; needs decode_layers_, and layers_ with
  // all but their matrices.
  void make_expanded(Backend& backend);
  [[nodiscard]] float* expanded_row_scales() const;

  ModelConfig config_;
  Precision precision_ = Precision::F32;
  DeviceBuffer arena_;
  DeviceBuffer expanded_;                    // one matrix in E4M3, then its rows' scales
  std::vector<LayerWeights> layers_;         // of prefill, and of decode where it has none apart
  std::vector<LayerWeights> decode_layers_;  // Int4
  DenseMatrix embed_tokens_;
  const float* final_norm_ = nullptr;  // null: folded into the head
  Weights lm_head_;
  DenseMatrix rescoring_head_;
  float operand_scale_ = 1;  // FP8: of normalised operands
};

}  // namespace fut
