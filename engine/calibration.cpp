// Statistics are sums in float64 over tokens in their order, on one thread: the same bits whatever
// ran the ops.
#include "engine/calibration.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fut {
namespace {

// Sums over tokens for each column.
struct ColumnSums {
  std::vector<double> squares;
  std::vector<double> amax;
  std::int64_t tokens = 0;

  void add(const HostRows& x) {
    squares.resize(static_cast<std::size_t>(x.cols));
    amax.resize(squares.size());
    for (std::int64_t t = 0; t < x.rows; ++t) {
      for (std::size_t c = 0; c < squares.size(); ++c) {
        const double value = x.row(t)[c];
        squares[c] += value * value;
        amax[c] = std::max(amax[c], std::fabs(value));
      }
    }
    tokens += x.rows;
  }
  // Column j was multiplied by 2^exponents[j].
  void scale(std::span<const int> exponents) {
    for (std::size_t c = 0; c < squares.size(); ++c) {
      squares[c] = std::ldexp(squares[c], 2 * exponents[c]);
      amax[c] = std::ldexp(amax[c], exponents[c]);
    }
  }
  [[nodiscard]] std::vector<float> mean_squares() const {
    std::vector<float> means;
    for (const double sum : squares) {
      means.push_back(static_cast<float>(sum / static_cast<double>(tokens)));
    }
    return means;
  }
};

struct LayerSums {
  ColumnSums qkv_input, query, key, value, o_input, gate_up_input, swiglu;
};

LayerSums run_layer(LayerRunner& runner, const TransformedLayer& w, const HiddenStates& hidden) {
  runner.set_qkv_proj({&w.q_proj, &w.k_proj, &w.v_proj});
  runner.set_o_proj({&w.o_proj});
  runner.set_gate_up_proj({&w.gate_proj, &w.up_proj});
  runner.set_down_proj({&w.down_proj});
  LayerSums sums;
  for (std::int64_t i = 0; i < hidden.num_windows(); ++i) {
    const MatrixView<float> x = hidden.window(i);
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

float largest(std::span<const double> values) {
  return static_cast<float>(*std::ranges::max_element(values));
}

LayerStatistics statistics_of(const LayerSums& sums, int num_kv_heads) {
  LayerStatistics out;
  out.qkv_input = sums.qkv_input.mean_squares();
  out.o_input = sums.o_input.mean_squares();
  out.gate_up_input = sums.gate_up_input.mean_squares();
  out.down_input = sums.swiglu.mean_squares();
  const double total = std::accumulate(sums.swiglu.squares.begin(), sums.swiglu.squares.end(), 0.0);
  const double count =
      static_cast<double>(sums.swiglu.tokens) * static_cast<double>(sums.swiglu.squares.size());
  out.swiglu_rms = static_cast<float>(std::sqrt(total / count));
  out.swiglu_amax = largest(sums.swiglu.amax);
  const std::span<const double> values = sums.value.amax;
  const std::size_t head_dim = values.size() / static_cast<std::size_t>(num_kv_heads);
  for (std::size_t begin = 0; begin < values.size(); begin += head_dim) {
    out.value_amax.push_back(largest(values.subspan(begin, head_dim)));
  }
  return out;
}

// The sum over all columns is finite only if every activation was: NaN and infinity stay.
void require_finite(int layer, const LayerSums& sums) {
  const auto check = [&](const char* what, const ColumnSums& columns) {
    const double total = std::accumulate(columns.squares.begin(), columns.squares.end(), 0.0);
    if (std::isfinite(total)) return;
    throw data_error(
        "layer {}: {} of the calibration text is not finite (sum of squares {}); the checkpoint is "
        "damaged or overflows float32, check it with --precision f32",
        layer, what, total);
  };
  check("the input of qkv_proj", sums.qkv_input);
  check("the attention output", sums.o_input);
  check("the input of gate_up_proj", sums.gate_up_input);
  check("the SwiGLU output", sums.swiglu);
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
  if (options_.balance_qk) {
    const AttentionShape shape{config_.num_q_heads, config_.num_kv_heads, config_.head_dim};
    apply_qk_exponents(
        w.q_proj, w.k_proj, shape,
        choose_qk_exponents(w.q_proj, w.k_proj, shape, sums.query.squares, sums.key.squares));
  }
  if (options_.balance_ffn) {
    const std::vector<int> exponents =
        choose_up_down_exponents(w.up_proj, w.down_proj, sums.swiglu.squares);
    apply_up_down_exponents(w.up_proj, w.down_proj, exponents);
    sums.swiglu.scale(exponents);
  }
  layer.statistics = statistics_of(sums, config_.num_kv_heads);
  return layer;
}

}  // namespace fut
