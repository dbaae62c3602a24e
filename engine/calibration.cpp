// Statistics are sums in float64 over tokens in their order, on one thread: the same bits whatever
// ran the ops.
#include "engine/calibration.h"

#include <algorithm>

#include "engine/calibration_sums.h"

namespace fut {
namespace {

LayerSums run_layer(LayerRunner& runner, const TransformedLayer& w, const HiddenStates& hidden) {
  runner.set_qkv_proj({&w.q_proj, &w.k_proj, &w.v_proj});
  runner.set_o_proj({&w.o_proj});
  runner.set_gate_up_proj({&w.gate_proj, &w.up_proj});
  runner.set_down_proj({&w.down_proj});
  LayerSums sums;
  for (std::int64_t i = 0; i < hidden.num_windows(); ++i) {
    const ActivationView x = hidden.window(i);
    sums.qkv_input.add(runner.normalised(x));
    runner.attend(x);
    sums.query.add(runner.queries());
    sums.key.add(runner.keys());
    sums.value.add(runner.values());
    sums.o_input.add(runner.attention_output());
    runner.add_attention(x);
    sums.gate_up_input.add(runner.normalised(x));
    runner.feed(x);
    sums.swiglu.add(runner.swiglu_output());
    runner.add_feed(x);
  }
  return sums;
}

}  // namespace

// ---- windows ------------------------------------------------------------------------------------

CalibrationWindows choose_windows(std::span<const std::int32_t> ids, int window,
                                  std::int64_t tokens) {
  FUT_CHECK(window >= 2 && tokens >= 1, "windows of {}, {} tokens", window, tokens);
  if (ids.size() < 2) {
    throw data_error("the calibration text has {} tokens, 2 are needed; use another text (--calib)",
                     ids.size());
  }
  const std::int64_t length = std::min<std::int64_t>(window, std::ssize(ids));
  const std::int64_t available = std::ssize(ids) / length;
  const std::int64_t count = std::clamp<std::int64_t>(tokens / length, 1, available);
  CalibrationWindows windows;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto begin = ids.begin() + available * i / count * length;
    windows.emplace_back(begin, begin + length);
  }
  return windows;
}

std::int64_t count_tokens(const CalibrationWindows& windows) {
  std::int64_t tokens = 0;
  for (const auto& window : windows) tokens += std::ssize(window);
  return tokens;
}

// ---- layers -------------------------------------------------------------------------------------

Calibrator::Calibrator(Backend& backend, const WeightTransforms& weights, const ModelConfig& config,
                       const PackedOptions& options, LayerRunner& runner,
                       const CalibrationWindows& windows)
    : weights_(weights),
      config_(config),
      options_(options),
      runner_(runner),
      hidden_(backend, weights, windows) {}

CalibratedLayer Calibrator::next() {
  FUT_CHECK(next_layer_ < config_.num_layers, "layer {} of {}", next_layer_, config_.num_layers);
  const int index = next_layer_++;
  CalibratedLayer layer{weights_.layer(index), {}};
  TransformedLayer& w = layer.weights;
  LayerSums sums = run_layer(runner_, w, hidden_);
  require_finite(index, sums);
  // The layer has run with channels as they were: a power of two changes no bit of what it gives.
  const LayerExponents exponents =
      choose_exponents(config_, options_, w, sums, weights_.parallel_for());
  if (options_.balance_qk) {
    apply_qk_exponents(w.q_proj, w.k_proj, attention_shape(config_), exponents.qk);
  }
  if (options_.balance_ffn) apply_up_down_exponents(w.up_proj, w.down_proj, exponents.up_down);
  sums.scale(exponents);
  layer.statistics = statistics_of(sums, config_.num_kv_heads);
  return layer;
}

}  // namespace fut
