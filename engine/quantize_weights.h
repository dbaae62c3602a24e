// The weights of a checkpoint as they are before quantisation: widened to float32, gains folded
// into their readers, rotated as the options say. The model's function is unchanged. What each
// transform is, is loader/transforms.h; powers of two need statistics and are calibration.h.
#pragma once

#include <array>
#include <optional>
#include <span>

#include "loader/checkpoint.h"
#include "loader/packed_options.h"
#include "loader/packed_tensors.h"
#include "loader/transforms.h"

namespace fut {

// The matrices of one layer. Norm gains are one.
struct TransformedLayer {
  HostMatrix q_proj, k_proj, v_proj, o_proj;
  HostMatrix gate_proj, up_proj, down_proj;
};

class WeightTransforms {
 public:
  // `checkpoint` must outlive it.
  WeightTransforms(const Checkpoint& checkpoint, const ModelConfig& config,
                   const PackedOptions& options, ParallelFor parallel_for);

  // Throw Data, naming tensor and position, for a weight that is not finite.
  [[nodiscard]] TransformedLayer layer(int index) const;
  // The same into a layer that was read before and is done with: its memory serves again.
  void read_layer(int index, TransformedLayer& into) const;
  // Rows of the embedding, in the order of `ids`, each in [0, vocab_size).
  [[nodiscard]] HostMatrix embedding(std::span<const std::int32_t> ids) const;
  // Rows [begin, begin + count).
  [[nodiscard]] HostMatrix embedding(std::int64_t begin, std::int64_t count) const;
  // The same of the head, with the final norm's gain: of a tied model another matrix than the
  // embedding.
  [[nodiscard]] HostMatrix head(std::int64_t begin, std::int64_t count) const;

  [[nodiscard]] const ParallelFor& parallel_for() const { return parallel_for_; }

 private:
  [[nodiscard]] HostMatrix rows(const TensorInfo& info, std::int64_t begin,
                                std::int64_t count) const;
  void read_rows(const TensorInfo& info, std::int64_t begin, std::int64_t count,
                 HostMatrix& into) const;
  [[nodiscard]] std::vector<float> gain(const TensorInfo& info) const;
  void rotate_reader(HostMatrix& w) const;

  const Checkpoint& checkpoint_;
  bool kv_rotation_;
  ParallelFor parallel_for_;
  std::optional<Rotation> hidden_rotation_;  // R1
  Rotation head_rotation_;                   // R2
  std::vector<float> final_gain_;
};

// The layer's matrices as PackedMatrix counts them: stacked, and named "layers.3.qkv_proj".
using StackedLayer = std::array<HostMatrix, kNumPackedMatrices>;
[[nodiscard]] StackedLayer stack_layer(TransformedLayer layer, int index);

}  // namespace fut
