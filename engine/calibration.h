// What a model does on a piece of text, layer by layer, as far as quantisation asks: mean squares
// of the inputs of every matrix, sizes of what FP8 has to hold, and the powers of two that even out
// channels. The model runs unquantised in float32 with transformed weights (quantize_weights.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/quantize_runner.h"
#include "engine/quantize_weights.h"

namespace fut {

// `tokens` ids (rounded down to whole windows, but at least one window) from places spread evenly
// over the text; all there are where that is less. Ids are taken as they come: what stands in front
// of the text, BOS usually, stands in front of the first window alone. Throws Data for fewer than
// two ids.
[[nodiscard]] CalibrationWindows choose_windows(std::span<const std::int32_t> ids, int window,
                                                std::int64_t tokens);
[[nodiscard]] std::int64_t count_tokens(const CalibrationWindows& windows);

// Of the transformed layer, as packed_tensors.h lists them.
struct LayerStatistics {
  std::vector<float> qkv_input, o_input, gate_up_input, down_input;  // E[x^2] of each column
  float swiglu_rms = 0;
  float swiglu_amax = 0;
  std::vector<float> value_amax;  // of each KV head
};

struct CalibratedLayer {
  TransformedLayer weights;  // evened out by powers of two where the options say so
  LayerStatistics statistics;
};

// Hands out the layers in order; each goes on with what the one before made of the text.
class Calibrator {
 public:
  // What is passed must outlive it; `runner` is free between two calls. Text: at least one window.
  Calibrator(Backend& backend, const WeightTransforms& weights, const ModelConfig& config,
             const PackedOptions& options, LayerRunner& runner, const CalibrationWindows& windows);

  // Throws Data, naming the layer, where activations are not finite.
  [[nodiscard]] CalibratedLayer next();

  [[nodiscard]] HiddenStates& hidden() { return hidden_; }
  // The next one is layer `index`; hidden() holds what the one before gave.
  void go_on_at(int index) { next_layer_ = index; }

 private:
  const WeightTransforms& weights_;
  const ModelConfig& config_;
  const PackedOptions& options_;
  LayerRunner& runner_;
  HiddenStates hidden_;
  int next_layer_ = 0;
};

}  // namespace fut
