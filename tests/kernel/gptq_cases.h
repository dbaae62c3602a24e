// Rows of weights half-way through GPTQ, for tests of its ops on a device: a Hessian, its factor, an order,
// codes and scales of round-to-nearest, residuals and their products.
#pragma once

#include <numeric>
#include <random>
#include <vector>

#include "kernels/ops_gptq.h"
#include "loader/gptq.h"
#include "loader/int4_grid.h"

namespace fut::test {

struct GptqCase {
  std::int64_t rows, cols;
  int group_size;
};
inline std::vector<GptqCase> gptq_cases() {
  return {{3, 128, 128}, {5, 256, 64}, {4, 384, 128}};
}

class GptqRows {
 public:
  explicit GptqRows(const GptqCase& problem, std::uint32_t seed = 5)
      : rows(problem.rows), cols(problem.cols), group_size(problem.group_size), h(cols) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    const std::int64_t tokens = 2 * cols;
    std::vector<float> x(static_cast<std::size_t>(tokens * cols));
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = normal(engine) * (i % 5 == 0 ? 4 : 1) + (i % 7 == 1 ? x[i - 1] : 0);
    }
    // An input that is always zero, and one after it.
    for (std::size_t i = 9; i < x.size(); i += static_cast<std::size_t>(cols)) x[i] = 0;
    accumulate_hessian(h, {x.data(), tokens, cols, cols}, {});
    mirror_lower(h);
    factor = factor_hessian("h", h, {}, {});
    ridge = factor.damping * mean_of(diagonal_of(h));
    order.assign(factor.order.begin(), factor.order.end());
    HostMatrix w("w", rows, cols);
    for (float& value : w.values) value = normal(engine);
    for (std::int64_t g = 0; g < cols / group_size; ++g) w.row(1)[g * group_size + 3] = 7;
    for (std::int64_t c = 0; c < group_size; ++c) w.row(2)[c] = 0;  // a scale of zero
    weights = w.values;
    QuantizedMatrix q = quantize_rtn(w, {}, group_size, ScaleRule::MinMax, {});
    codes = std::move(q.codes);
    scales = std::move(q.scales);
    permuted.resize(weights.size());
    residual.resize(weights.size());
    product.resize(weights.size());
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        const auto i = static_cast<std::size_t>(r * cols + c);
        const auto from = static_cast<std::size_t>(r * cols + order[static_cast<std::size_t>(c)]);
        permuted[i] = weights[from];
        residual[i] = static_cast<double>(weights[i]) -
                      decode_int4(codes[i], {scales[i / static_cast<std::size_t>(group_size)]});
      }
    }
    add_product({product.data(), rows, cols, cols}, {residual.data(), rows, cols, cols},
                {h.values.data(), cols, cols, cols});
  }

  [[nodiscard]] Int4Rows q() { return {rows, cols, group_size, codes.data(), scales.data()}; }
  [[nodiscard]] std::vector<double> room_for_block() const {
    return std::vector<double>(static_cast<std::size_t>(rows * kGptqBlockColumns), -99);
  }

  std::int64_t rows, cols;
  int group_size;
  SquareMatrix h;
  GptqFactor factor;
  double ridge = 0;
  std::vector<std::int32_t> order;
  std::vector<float> weights;
  std::vector<std::int8_t> codes;
  std::vector<std::uint16_t> scales;
  std::vector<double> permuted, residual, product;
};

}  // namespace fut::test
