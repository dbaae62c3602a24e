// The grid of one group of weights: a signed BF16 scale and a code -8..7 for each weight, found by
// search. Round-to-nearest and GPTQ both take their scales and codes from here, so that the two
// differ in nothing else.
//
// A code is weight / scale (a true division), rounded to the nearest with ties to even, clamped.
// The sign of the scale decides which end of the group gets the longer side of the codes.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "loader/quantized_matrix.h"

namespace fut {

enum class ScaleRule {
  MinMax,    // the weight of largest size becomes -8; for comparison
  Searched,  // see quantize_group
};

struct GroupGrid {
  std::uint16_t scale = 0;  // bits of a BF16
  double error = 0;         // sum of importance * (weight - code * scale)^2
};

// Scale and codes of one group. Searched: candidates are +-(largest size) * p / 8 for p = 1.05,
// 1.04, ... 0.55, rounded to BF16; the best by weighted squared error wins, the earlier (larger,
// positive first) of equals. Then, twice at most, the scale that fits the codes best by least
// squares and new codes, if the error falls (0.1 % on Gaussian weights, 0.6 % with uneven
// importances; a finer search gives less). The min-max scale gives way only to a smaller error in
// float64: searched is never worse.
//
// weights     a multiple of 8 of them
// importance  of each weight, E[x^2] of its column: finite, not negative; empty or all zero:
//             all equal
// codes       as many as weights
//
// A group whose weights are all below 2^-120 in size gets scale 0 and codes 0: its scale would
// leave the normal range of BF16. Weights must be finite and below 2^127 in size.
GroupGrid quantize_group(std::span<const float> weights, std::span<const float> importance,
                         ScaleRule rule, std::span<std::int8_t> codes);

// quantize_group for all groups of one row. codes: w.cols; scales: w.cols / group_size. Throws
// Data, naming matrix, row and column, for a weight that is not finite or reaches 2^127.
void quantize_row(const HostMatrix& w, std::int64_t row, std::span<const float> importance,
                  int group_size, ScaleRule rule, std::span<std::int8_t> codes,
                  std::span<std::uint16_t> scales);

// What quantize_row throws of weight `value`.
[[noreturn]] void throw_no_int4_scale(const std::string& matrix, std::int64_t row, std::int64_t col,
                                      float value);

// Round to nearest. importance holds w.cols values or none. Throws Data as check_quantizable,
// check_importance and quantize_row.
[[nodiscard]] QuantizedMatrix quantize_rtn(const HostMatrix& w, std::span<const float> importance,
                                           int group_size, ScaleRule rule,
                                           const ParallelFor& parallel_for);

// Throws Data, naming matrix and column, for an importance that is negative or not finite.
void check_importance(const std::string& matrix, std::int64_t cols,
                      std::span<const float> importance);

}  // namespace fut
