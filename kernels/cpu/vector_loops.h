// The inner loops that take nearly all of the CPU backend's time, compiled once for each
// instruction set and chosen when the backend is made. Every build gives the same bits: the order
// of additions is the contract's, products are rounded before they are added, and what differs is
// only how many of the 16 partial sums one instruction handles.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace fut::cpu {

// out[m, n] = dot(x row m, weight row n) for all m < num_tokens, n < num_rows.
struct DotBlock {
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t num_tokens = 0;
  DType dtype = DType::F32;  // of weight, widened exactly: F32, F16, BF16 or E4M3
  const void* weight = nullptr;
  std::int64_t weight_stride = 0;  // elements
  std::int64_t num_rows = 0;
  std::int64_t cols = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;
};

// sums[m, d] += sum_i factors[m, i] * values[i, d], i ascending, for all m < num_sums, d < cols.
struct WeightedRows {
  const float* factors = nullptr;
  std::int64_t factors_stride = 0;
  const float* values = nullptr;
  std::int64_t values_stride = 0;
  std::int64_t num_values = 0;
  std::int64_t cols = 0;
  float* sums = nullptr;
  std::int64_t sums_stride = 0;
  std::int64_t num_sums = 0;
};

struct VectorLoops {
  std::string_view name;  // "AVX-512"
  void (*dots)(const DotBlock& block);
  void (*add_weighted_rows)(const WeightedRows& rows);
  void (*widen)(DType dtype, const void* in, std::int64_t count, float* out);  // exact
  void (*widen_int8)(const std::int8_t* in, std::int64_t count, float* out);
  // values = T(values), T being BF16, F16 or E4M3, the last two saturating. Returns how many E4M3
  // clipped, 0 for the others.
  std::int64_t (*round_to)(DType dtype, float* values, std::int64_t count);
  // out = T(values) as T holds it, in the same way; T may be F32, too.
  std::int64_t (*narrow)(DType dtype, const float* values, std::int64_t count, void* out);
  // The codes of one record of layout/int4_tile.h, -8 .. 7: out is [16 rows, group].
  void (*unpack_int4)(const std::uint8_t* codes, int group, float* out);
  // values *= scale; returns the largest of them (minus infinity where all are NaN).
  float (*scale_and_find_maximum)(float* values, std::int64_t count, float scale);
  // values = exp(values - subtract), within one unit in the last place.
  void (*exponentials)(float* values, std::int64_t count, float subtract);
  // out = gate / (1 + exp(-gate)) * up
  void (*swiglu)(const float* gate, const float* up, std::int64_t count, float* out);
};

// The builds that this machine can run, the plainest first and the fastest last.
[[nodiscard]] std::vector<const VectorLoops*> usable_vector_loops();

}  // namespace fut::cpu
