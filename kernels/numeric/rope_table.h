// Rotary position embedding: the inverse frequencies and the cos/sin table that every backend
// reads. Llama 3.1 frequency scaling as in the published model code; computed in float64, rounded
// once.
#pragma once

#include <cstdint>
#include <vector>

namespace fut {

struct RopeParams {
  enum class Scaling { None, Llama3, Linear };
  double theta = 10000.0;
  Scaling scaling = Scaling::None;
  double factor = 1.0;                                // Llama3, Linear
  double low_freq_factor = 1.0;                       // Llama3
  double high_freq_factor = 4.0;                      // Llama3
  std::int64_t original_max_position_embeddings = 0;  // Llama3
};

// head_dim / 2 inverse frequencies: theta^(-2i/head_dim), then scaled. Llama3: wavelengths under
// original/high keep theirs, over original/low are divided by factor, between blend linearly.
[[nodiscard]] std::vector<double> rope_inverse_frequencies(const RopeParams& params, int head_dim);

// Row-major [num_positions, head_dim/2] tables. Pair i of a head is (x[i], x[i + head_dim/2]).
struct RopeTable {
  int num_positions = 0;
  int half_dim = 0;
  std::vector<float> cos;
  std::vector<float> sin;
};
[[nodiscard]] RopeTable make_rope_table(const RopeParams& params, int head_dim, int num_positions);

}  // namespace fut
