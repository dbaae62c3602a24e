// The quantised model once more, in the plainest way: weights dequantised element by element through
// the layout header, one ordinary causal pass over the whole text, values rounded where the table
// "Who rounds what" says so for INT4 decode. It shares layouts and scalar number formats with the
// program and nothing else: no op, no cache, no page, no segment of K.
#pragma once

#include <filesystem>
#include <vector>

#include "engine/precision.h"
#include "loader/model_config.h"
#include "loader/quantized_matrix.h"

namespace fut::test {

// In which order the products of a sum are added. Two orders tell how much summation order alone
// moves a result, which no comparison can see below.
enum class SumOrder { Ascending, Descending };

// What is deliberately wrong: a test that cannot tell any of these from the truth is no test.
enum class Fault {
  None,
  SwappedNibbles,    // rows g and g + 8 of a strip exchanged
  ShiftedScales,     // each group with the scale of its neighbour
  UnsignedScales,    // the sign of a scale lost
  NoMinimum,         // cached codes without their minimum
  UnrotatedQueries,  // keys rotated, queries not
  UnrotatedScales,   // parameters of the unrotated keys for rotated codes
  NoRopeScaling,     // rope_scaling of the configuration ignored
  SmallTheta,        // 10000 instead of the model's
  NoNorm,            // the row's scale left out of one projection
};

class QuantizedReference {
 public:
  // Reads a quantised folder.
  explicit QuantizedReference(const std::filesystem::path& folder);

  // Logits [tokens, vocab_size] as INT4 decode would give them, one token at a time from position
  // 0 on. `kv` is an INT4 or BF16 cache.
  [[nodiscard]] std::vector<std::vector<float>> logits(const std::vector<std::int32_t>& ids,
                                                       const KvCacheOptions& kv,
                                                       SumOrder order = SumOrder::Ascending,
                                                       Fault fault = Fault::None) const;

  [[nodiscard]] const ModelConfig& config() const { return config_; }

 private:
  // INT4 weights of a layer as codes and scales, in the order of the stacked sources.
  struct Layer {
    QuantizedMatrix qkv, o, gate_up, down;
  };

  ModelConfig config_;
  std::vector<Layer> layers_;
  HostMatrix embed_;
  HostMatrix head_codes_;  // as numbers -127 .. 127
  std::vector<float> head_scales_;

  friend class ReferencePass;
};

}  // namespace fut::test
