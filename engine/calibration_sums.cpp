// Sums in float64 on one thread, tokens in their order: the same bits whatever ran the ops.
#include "engine/calibration_sums.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fut {
namespace {

float largest(std::span<const double> values) {
  return static_cast<float>(*std::ranges::max_element(values));
}

}  // namespace

void ColumnSums::add(const HostRows& x) {
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

void ColumnSums::scale(std::span<const int> exponents) {
  for (std::size_t c = 0; c < squares.size(); ++c) {
    squares[c] = std::ldexp(squares[c], 2 * exponents[c]);
    amax[c] = std::ldexp(amax[c], exponents[c]);
  }
}

std::vector<float> ColumnSums::mean_squares() const {
  std::vector<float> means;
  for (const double sum : squares) {
    means.push_back(static_cast<float>(sum / static_cast<double>(tokens)));
  }
  return means;
}

void LayerSums::scale(const LayerExponents& exponents) {
  if (!exponents.up_down.empty()) swiglu.scale(exponents.up_down);
}

AttentionShape attention_shape(const ModelConfig& config) {
  return {config.num_q_heads, config.num_kv_heads, config.head_dim};
}

LayerExponents choose_exponents(const ModelConfig& config, const PackedOptions& options,
                                const TransformedLayer& w, const LayerSums& sums,
                                const ParallelFor& parallel_for) {
  LayerExponents exponents;
  if (options.balance_qk) {
    exponents.qk = choose_qk_exponents(w.q_proj, w.k_proj, attention_shape(config),
                                       sums.query.squares, sums.key.squares, parallel_for);
  }
  if (options.balance_ffn) {
    exponents.up_down =
        choose_up_down_exponents(w.up_proj, w.down_proj, sums.swiglu.squares, parallel_for);
  }
  return exponents;
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

}  // namespace fut
