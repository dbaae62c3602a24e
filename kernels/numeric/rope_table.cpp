// Rotary tables in float64, rounded to float32 once. The angle is position * inverse frequency;
// float32 angles would already be off by more than 1e-3 at position 100,000.
#include "kernels/numeric/rope_table.h"

#include <cmath>
#include <numbers>

#include "kernels/check.h"

namespace fut {
namespace {

// Between the two wavelength limits, the share of the unscaled frequency grows linearly with the
// number of turns that fit into the original context.
double llama3_frequency(const RopeParams& p, double frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(p.original_max_position_embeddings);
  if (wavelength < original / p.high_freq_factor) return frequency;
  if (wavelength > original / p.low_freq_factor) return frequency / p.factor;
  const double smooth =
      (original / wavelength - p.low_freq_factor) / (p.high_freq_factor - p.low_freq_factor);
  return (1.0 - smooth) * frequency / p.factor + smooth * frequency;
}

double scaled_frequency(const RopeParams& p, double frequency) {
  switch (p.scaling) {
    case RopeParams::Scaling::None:
      return frequency;
    case RopeParams::Scaling::Linear:
      return frequency / p.factor;
    case RopeParams::Scaling::Llama3:
      return llama3_frequency(p, frequency);
  }
  return frequency;
}

}  // namespace

std::vector<double> rope_inverse_frequencies(const RopeParams& params, int head_dim) {
  FUT_CHECK(head_dim >= 2 && head_dim % 2 == 0, "head_dim is {}, must be even", head_dim);
  FUT_CHECK(params.theta > 0, "theta is {}, must be positive", params.theta);
  std::vector<double> frequencies;
  for (int i = 0; i < head_dim / 2; ++i) {
    frequencies.push_back(scaled_frequency(params, std::pow(params.theta, -2.0 * i / head_dim)));
  }
  return frequencies;
}

RopeTable make_rope_table(const RopeParams& params, int head_dim, int num_positions) {
  FUT_CHECK(num_positions >= 1, "num_positions is {}", num_positions);
  const std::vector<double> frequencies = rope_inverse_frequencies(params, head_dim);
  RopeTable table;
  table.num_positions = num_positions;
  table.half_dim = head_dim / 2;
  const std::size_t elements = static_cast<std::size_t>(num_positions) * frequencies.size();
  table.cos.reserve(elements);
  table.sin.reserve(elements);
  for (int position = 0; position < num_positions; ++position) {
    for (const double frequency : frequencies) {
      const double angle = position * frequency;
      table.cos.push_back(static_cast<float>(std::cos(angle)));
      table.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return table;
}

}  // namespace fut
