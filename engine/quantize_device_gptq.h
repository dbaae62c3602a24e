// GPTQ layer by layer on a device: as SequentialGptq of quantize_gptq.h, with weights and activations in
// BF16 there. What is done to one matrix is gptq_on_device.h.
#pragma once

#include <array>
#include <functional>
#include <string>

#include "engine/gptq_on_device.h"
#include "engine/quantize_runner.h"

namespace fut {

class DeviceGptq {
 public:
  // What is passed must outlive it. `original` runs the layers as they were, has room for the windows and
  // is free between two calls. Throws as GptqOnDevice.
  DeviceGptq(Backend& backend, const WeightTransforms& weights, const ModelConfig& config,
             const GptqOptions& options, LayerRunner& original, const CalibrationWindows& windows,
             std::function<void()> tick);

  // The matrices of a layer in order, which `original` has loaded all of: `w` as it was in float32, `q`
  // receives codes and scales. After the last one both streams have passed the layer. The report's errors
  // are left to the caller: see importance(). Throws as GptqOnDevice::quantize.
  MatrixReport quantize(PackedMatrix which, const std::string& name, MatrixView<const float> w,
                        const Int4Rows& q);
  [[nodiscard]] const float* importance() const { return matrix_.importance(); }

  // All that is kept from one layer to the next.
  [[nodiscard]] std::array<HiddenStates*, 2> hidden() {
    return {&quantised_.hidden, &original_.hidden};
  }

 private:
  struct Stream {
    LayerRunner& runner;
    HiddenStates hidden;
  };
  // What a matrix sees of a window.
  [[nodiscard]] static ConstActivationView input(PackedMatrix which, LayerRunner& runner,
                                                 ActivationView x);
  void finish_layer();

  Backend& backend_;
  LayerRunner runner_;  // through what is quantised
  Stream quantised_, original_;
  GptqOnDevice matrix_;
};

}  // namespace fut
