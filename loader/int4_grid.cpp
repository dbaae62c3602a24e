// The search for scales. Its inner loop is written with vector types and compiled twice, for the
// plain instruction set and for AVX2: the same operations on the same lanes, so the same bits.
// Neither has fused multiply-add.
#include "loader/int4_grid.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/numeric/int4_code.h"
#include "kernels/numeric/int4_search.h"

namespace fut {
namespace {

constexpr int kLanes = 8;
constexpr std::size_t kMaxGroup = 128;
typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t Words __attribute__((vector_size(kLanes * 4)));
// Vector types never lie in memory: their alignment would be another one for each instruction set.
typedef float FloatsInMemory __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

// A group scaled by a power of two to a largest size in [1, 2), and its importances scaled to a
// largest of 1: squares can then neither overflow nor vanish, whatever the checkpoint holds.
struct ScaledGroup {
  std::array<float, kMaxGroup> weights;
  std::array<float, kMaxGroup> importance;
  std::size_t size = 0;
};

struct ErrorPair {
  float plus = 0, minus = 0;
};

// Weighted squared errors of the codes under +scale and under -scale. The quotients differ in sign
// alone, so one division serves both; they part only where a quotient rounds to 8 on the side whose
// last code is 7.
__attribute__((always_inline)) inline void pair_error_body(const ScaledGroup& group, float scale,
                                                           ErrorPair& out) {
  // Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even.
  constexpr float kRounder = 0x1.8p23F;
  Floats plus = {}, minus = {};
  const Floats s = scale - Floats{};
  for (std::size_t i = 0; i < group.size; i += kLanes) {
    const Floats x = *reinterpret_cast<const FloatsInMemory*>(&group.weights[i]);
    const Floats importance = *reinterpret_cast<const FloatsInMemory*>(&group.importance[i]);
    Floats code = x / s;
    code = code < 8.0F ? code : 8.0F - Floats{};
    code = code > -8.0F ? code : -8.0F - Floats{};
    code = (code + kRounder) - kRounder;
    const Floats error = x - code * s;
    const Floats plus_error = error + (Floats)((Words)s & (code == 8.0F));
    const Floats minus_error = error - (Floats)((Words)s & (code == -8.0F));
    plus += importance * (plus_error * plus_error);
    minus += importance * (minus_error * minus_error);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    out.plus += plus[lane];
    out.minus += minus[lane];
  }
}

using PairErrorFunction = void (*)(const ScaledGroup& group, float scale, ErrorPair& out);

void pair_error_plain(const ScaledGroup& group, float scale, ErrorPair& out) {
  pair_error_body(group, scale, out);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void pair_error_avx2(const ScaledGroup& group, float scale,
                                                     ErrorPair& out) {
  pair_error_body(group, scale, out);
}
#endif

PairErrorFunction pair_error_function() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return &pair_error_avx2;
#endif
  return &pair_error_plain;
}

float round_to_bf16(float value) {
  return Int4Scale::nearest(value).value();
}

// False for a NaN.
bool is_weight(float value) {
  return std::fabs(value) < kTooLargeInt4Weight;
}

// The weight of largest size, the first of equals.
float largest_weight(std::span<const float> weights) {
  float largest = 0;
  for (const float weight : weights) {
    if (std::fabs(weight) > std::fabs(largest)) largest = weight;
  }
  return largest;
}

ScaledGroup scale_group(std::span<const float> weights, std::span<const float> importance,
                        float power_of_two) {
  ScaledGroup group;
  group.size = weights.size();
  const float top =
      importance.empty() ? 0 : *std::max_element(importance.begin(), importance.end());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    group.weights[i] = weights[i] * power_of_two;
    group.importance[i] = top > 0 ? importance[i] / top : 1.0F;
  }
  return group;
}

float search_scale(const ScaledGroup& group, float largest_size) {
  const PairErrorFunction pair_error = pair_error_function();
  float best_error = std::numeric_limits<float>::infinity();
  float best = 0;
  for (int percent = kFirstScalePercent; percent >= kLastScalePercent; --percent) {
    const float scale = round_to_bf16(largest_size * (static_cast<float>(percent) / 100.0F) / 8.0F);
    ErrorPair error;
    pair_error(group, scale, error);
    if (error.plus < best_error) {
      best_error = error.plus;
      best = scale;
    }
    if (error.minus < best_error) {
      best_error = error.minus;
      best = -scale;
    }
  }
  return best;
}

// The codes of a scale and their weighted squared error in float64, which decides.
struct Trial {
  Int4Scale scale;
  double error = std::numeric_limits<double>::infinity();
  std::array<std::int8_t, kMaxGroup> codes{};
};

double importance_of(std::span<const float> importance, bool uniform, std::size_t i) {
  return uniform ? 1.0 : static_cast<double>(importance[i]);
}

Trial try_scale(std::span<const float> weights, std::span<const float> importance, bool uniform,
                float scale) {
  Trial trial;
  trial.scale = Int4Scale::nearest(scale);
  trial.error = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const int code = encode_int4(weights[i], trial.scale);
    const double error = static_cast<double>(weights[i]) - decode_int4(code, trial.scale);
    trial.codes[i] = static_cast<std::int8_t>(code);
    trial.error += importance_of(importance, uniform, i) * (error * error);
  }
  return trial;
}

// The scale that fits the codes best: a line through the origin, weighted least squares.
float refit_scale(std::span<const float> weights, std::span<const float> importance, bool uniform,
                  const Trial& trial) {
  double numerator = 0, denominator = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double code = trial.codes[i];
    const double weighted = importance_of(importance, uniform, i) * code;
    numerator += weighted * weights[i];
    denominator += weighted * code;
  }
  return denominator > 0 ? static_cast<float>(numerator / denominator) : 0.0F;
}

}  // namespace

GroupGrid quantize_group(std::span<const float> weights, std::span<const float> importance,
                         ScaleRule rule, std::span<std::int8_t> codes) {
  FUT_CHECK(weights.size() <= kMaxGroup && weights.size() % kLanes == 0, "{} weights in a group",
            weights.size());
  FUT_CHECK(codes.size() == weights.size(), "{} codes for {} weights", codes.size(),
            weights.size());
  FUT_CHECK(importance.empty() || importance.size() == weights.size(),
            "{} importances for {} weights", importance.size(), weights.size());
  FUT_CHECK(std::ranges::all_of(weights, is_weight), "a weight of the group is not finite");
  const float largest = largest_weight(weights);
  const float size = std::fabs(largest);
  if (size < kSmallestInt4Weight) {
    std::fill(codes.begin(), codes.end(), std::int8_t{0});
    return {};
  }
  const bool uniform =
      std::none_of(importance.begin(), importance.end(), [](float v) { return v > 0; });
  // The weight of largest size becomes -8.
  Trial best = try_scale(weights, importance, uniform, -largest / 8.0F);
  const auto keep_better = [&best](const Trial& trial) {
    const bool better = trial.error < best.error;
    if (better) best = trial;
    return better;
  };
  if (rule == ScaleRule::Searched) {
    const float power_of_two = std::ldexp(1.0F, -std::ilogb(size));
    const ScaledGroup group = scale_group(weights, importance, power_of_two);
    const float found = search_scale(group, size * power_of_two) / power_of_two;
    keep_better(try_scale(weights, importance, uniform, found));
    for (int pass = 0; pass < kScaleRefits; ++pass) {
      const float refitted = refit_scale(weights, importance, uniform, best);
      if (!std::isnormal(refitted) ||
          !keep_better(try_scale(weights, importance, uniform, refitted))) {
        break;
      }
    }
  }
  std::copy_n(best.codes.begin(), codes.size(), codes.begin());
  return {best.scale.bf16, best.error};
}

void throw_no_int4_scale(const std::string& matrix, std::int64_t row, std::int64_t col,
                         float value) {
  throw data_error(
      "{}: row {}, column {} is {}, which no INT4 scale can serve (sizes below 2^127 can); the "
      "checkpoint is damaged, fetch it again",
      matrix, row, col, value);
}

void quantize_row(const HostMatrix& w, std::int64_t row, std::span<const float> importance,
                  int group_size, ScaleRule rule, std::span<std::int8_t> codes,
                  std::span<std::uint16_t> scales) {
  const auto size = static_cast<std::size_t>(group_size);
  const std::span<const float> weights(w.row(row), static_cast<std::size_t>(w.cols));
  for (std::size_t c = 0; c < weights.size(); ++c) {
    if (!is_weight(weights[c])) {
      throw_no_int4_scale(w.name, row, static_cast<std::int64_t>(c), weights[c]);
    }
  }
  for (std::size_t g = 0; g < scales.size(); ++g) {
    const auto part = importance.empty() ? importance : importance.subspan(g * size, size);
    scales[g] =
        quantize_group(weights.subspan(g * size, size), part, rule, codes.subspan(g * size, size))
            .scale;
  }
}

void check_importance(const std::string& matrix, std::int64_t cols,
                      std::span<const float> importance) {
  FUT_CHECK(importance.empty() || std::ssize(importance) == cols,
            "{} importances for the {} columns of {}", importance.size(), cols, matrix);
  for (std::size_t c = 0; c < importance.size(); ++c) {
    if (!(importance[c] >= 0 && std::isfinite(importance[c]))) {
      throw data_error(
          "{}: the mean square of input {} is {}; the calibration statistics are damaged, quantise "
          "the checkpoint again",
          matrix, c, importance[c]);
    }
  }
}

QuantizedMatrix quantize_rtn(const HostMatrix& w, std::span<const float> importance, int group_size,
                             ScaleRule rule, const ParallelFor& parallel_for) {
  check_quantizable(w, group_size);
  check_importance(w.name, w.cols, importance);
  QuantizedMatrix out(w.rows, w.cols, group_size);
  run_parallel(parallel_for, w.rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      quantize_row(w, r, importance, group_size, rule,
                   {out.row(r), static_cast<std::size_t>(out.cols)},
                   {out.row_scales(r), static_cast<std::size_t>(out.groups())});
    }
  });
  return out;
}

}  // namespace fut
