// From numbers to the tensors of a packed folder, in the order in which the folder has them: INT4
// streams, FP8 copies and their frozen scales, statistics, the head. Which tensors there are is
// loader/packed_tensors.h.
#pragma once

#include "engine/quantize_layer.h"
#include "loader/packed_writer.h"

namespace fut {

// The bytes of a matrix's tensors.
struct PackedMatrixBytes {
  std::vector<std::uint8_t> int4, e4m3;
  std::vector<float> e4m3_scales;
};
// A layer ready to be written.
struct PackedLayer {
  std::array<PackedMatrixBytes, kNumPackedMatrices> matrices;
  LayerStatistics statistics;
};

// One for each KV head: powers of two that the inputs of o_proj's FP8 copy are multiplied by.
[[nodiscard]] std::vector<float> attention_output_scales(const LayerStatistics& statistics);

// `layer` holds the weights of the FP8 copies, which are made of it and not of the INT4 codes.
[[nodiscard]] PackedLayer pack_layer(const ModelConfig& config, const StackedLayer& layer,
                                     const QuantizedLayer& quantized,
                                     const LayerStatistics& statistics,
                                     const ParallelFor& parallel_for);

class TensorPacker {
 public:
  // What is passed must outlive it.
  TensorPacker(PackedWriter& writer, const WeightTransforms& weights, const ModelConfig& config,
               int group_size, ParallelFor parallel_for);

  // Weights done, of `config.vocab_size` x hidden_size.
  using RowsDone = std::function<void(const HostMatrix& rows)>;
  void append_embedding(const RowsDone& done = {});
  // Layers in order. `state` is what their author needs to go on after this one, see
  // PackedWriter::save_progress; nothing is saved where there is none.
  void append_layer(int index, const PackedLayer& layer, const SavedState& state);
  void append_head(const RowsDone& done = {});

 private:
  template <class T>
  void append(const std::string& tensor, const std::vector<T>& values);
  void append_rows(const std::string& tensor, const HostMatrix& rows);
  template <class Body>
  void for_rows(const Body& body) const;
  [[nodiscard]] std::string name(int layer, PackedLayerTensor which) const;

  PackedWriter& writer_;
  const WeightTransforms& weights_;
  const ModelConfig& config_;
  int group_size_;
  ParallelFor parallel_for_;
};

}  // namespace fut
