// Inputs are computed anew for each matrix: hidden states are all that grows with the text.
#include "engine/quantize_device_gptq.h"

#include <algorithm>

namespace fut {
namespace {

int longest(const CalibrationWindows& windows) {
  std::size_t most = 0;
  for (const auto& window : windows) most = std::max(most, window.size());
  return static_cast<int>(most);
}

}  // namespace

DeviceGptq::DeviceGptq(Backend& backend, const WeightTransforms& weights, const ModelConfig& config,
                       const GptqOptions& options, LayerRunner& original,
                       const CalibrationWindows& windows, std::function<void()> tick)
    : backend_(backend),
      runner_(backend, config, longest(windows), tick, DType::BF16),
      quantised_{runner_, HiddenStates(backend, weights, windows, DType::BF16)},
      original_{original, HiddenStates(backend, weights, windows, DType::BF16)},
      matrix_(backend, matrix_limits(config), options, std::move(tick)) {}

ConstActivationView DeviceGptq::input(PackedMatrix which, LayerRunner& runner, ActivationView x) {
  switch (which) {
    case PackedMatrix::QkvProj:
      return runner.normalise(x);
    case PackedMatrix::OProj:
      runner.attend(x);
      return runner.attention_view();
    case PackedMatrix::GateUpProj:
      runner.attend(x);
      runner.add_attention(x);
      return runner.normalise(x);
    case PackedMatrix::DownProj:
      break;
  }
  runner.feed(x);
  return runner.swiglu_view();
}

MatrixReport DeviceGptq::quantize(PackedMatrix which, const std::string& name,
                                  MatrixView<const float> w, const Int4Rows& q) {
  matrix_.begin(w.cols);
  for (std::int64_t i = 0; i < quantised_.hidden.num_windows(); ++i) {
    const ConstActivationView x = input(which, runner_, quantised_.hidden.window(i));
    matrix_.add(x, input(which, original_.runner, original_.hidden.window(i)));
  }
  MatrixReport report = matrix_.quantize(name, w, q, gptq_slab_rows(w.cols));
  runner_.set_dequantised(which, q);
  backend_.synchronize();  // ops take weights for what nobody writes
  if (which == PackedMatrix::DownProj) finish_layer();
  return report;
}

void DeviceGptq::finish_layer() {
  for (Stream* stream : {&quantised_, &original_}) {
    for (std::int64_t i = 0; i < stream->hidden.num_windows(); ++i) {
      stream->runner.feed(stream->hidden.window(i));
      stream->runner.add_feed(stream->hidden.window(i));
    }
  }
}

}  // namespace fut
