// What calibration sums over the tokens of a text, and what follows from the sums: statistics and
// powers of two. Whoever ran the model: the host, or a device. Internal to engine/.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/calibration.h"

namespace fut {

// Sums over tokens for each column.
struct ColumnSums {
  std::vector<double> squares;
  std::vector<double> amax;
  std::int64_t tokens = 0;

  void add(const HostRows& x);
  // Column j was multiplied by 2^exponents[j].
  void scale(std::span<const int> exponents);
  [[nodiscard]] std::vector<float> mean_squares() const;
};

// Powers of two that even out channels; empty where the options leave them alone.
struct LayerExponents {
  std::vector<int> qk, up_down;
};

struct LayerSums {
  ColumnSums qkv_input, query, key, value, o_input, gate_up_input, swiglu;

  // What the statistics describe was multiplied.
  void scale(const LayerExponents& exponents);
};

[[nodiscard]] AttentionShape attention_shape(const ModelConfig& config);
[[nodiscard]] LayerExponents choose_exponents(const ModelConfig& config,
                                              const PackedOptions& options,
                                              const TransformedLayer& w, const LayerSums& sums,
                                              const ParallelFor& parallel_for);
[[nodiscard]] LayerStatistics statistics_of(const LayerSums& sums, int num_kv_heads);
// Throws Data, naming layer and activations. The sum over all columns is finite only if every
// activation was: NaN and infinity stay.
void require_finite(int layer, const LayerSums& sums);

}  // namespace fut
