// Projections block by block; linear_residual and gate_up_swiglu, which are a projection and a few
// lines for each token after it.
#include "kernels/cpu/linear.h"

#include <array>
#include <cmath>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/block_products.h"
#include "kernels/numeric/activation_scales.h"
#include "kernels/numeric/formats.h"

namespace fut::cpu {
namespace {

// R = T(R + y)
void add_to_residual(const ActivationView& residual, std::int64_t row, const float* y) {
  if (residual.dtype == DType::F32) {
    auto* r = residual.row<float>(row);
    for (std::int64_t n = 0; n < residual.cols; ++n) r[n] += y[n];
  } else {
    auto* r = residual.row<std::uint16_t>(row);
    for (std::int64_t n = 0; n < residual.cols; ++n) r[n] = f32_to_bf16(bf16_to_f32(r[n]) + y[n]);
  }
}

// 2^exponents[m], or null where there are none.
const float* exponent_factors(Workers& workers, const std::int32_t* exponents, std::int64_t count) {
  if (exponents == nullptr) return nullptr;
  float* factors = workers.scratch.take(count);
  for (std::int64_t m = 0; m < count; ++m) {
    FUT_CHECK(exponents[m] >= 0 && exponents[m] <= 127,
              "linear_residual: x_exponents[{}] is {}, must lie in [0, 127]", m, exponents[m]);
    factors[m] = std::ldexp(1.0F, exponents[m]);
  }
  return factors;
}

float largest_size(const float* values, std::int64_t count) {
  float largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
  return largest;
}

void scale_by(float factor, float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
}

// One token: gate and up, side by side in `y`, become out. `y` is overwritten.
void finish_swiglu(Workers& workers, const GateUpSwigluArgs& a, std::int64_t token, float* y) {
  const std::int64_t count = a.out.cols;
  float* h = y;
  workers.loops.swiglu(y, y + count, count, h);
  if (a.out.dtype == DType::E4M3) scale_by(a.out_scale, h, count);
  if (a.out.dtype == DType::F16) {
    const std::int32_t exponent = swiglu_exponent(largest_size(h, count));
    scale_by(std::ldexp(1.0F, -exponent), h, count);
    a.out_exponents[token] = exponent;
  }
  const std::int64_t num_clipped =
      workers.loops.narrow(a.out.dtype, h, count, row_address(a.out, token));
  add_clipped(workers.saturations.swiglu_outputs, num_clipped);
}

std::vector<Weights> parts_of(const GateUpWeights& weights) {
  if (const auto* stacked = std::get_if<Weights>(&weights)) return {*stacked};
  const auto& apart = std::get<GateUpMatrices>(weights);
  return {apart.gate_proj, apart.up_proj};
}

}  // namespace

std::int64_t project_elements(const Workers& workers, const Weights& weight,
                              std::int64_t num_tokens) {
  return workers.pool.num_threads() * block_elements(weight, num_tokens);
}

void project(Workers& workers, const Operand& operand, std::span<const Projection> projections) {
  const std::int64_t tokens = operand.x.rows;
  const std::int64_t own_elements = block_elements(projections.front().weight, tokens);
  float* scratch = workers.scratch.take(workers.pool.num_threads() * own_elements);
  const auto blocks_of = [&](const Projection& p) {
    return num_blocks(tokens, stored_rows(p.weight));
  };
  std::int64_t count = 0;
  for (const Projection& p : projections) count += blocks_of(p);
  workers.pool.parallel_for(count, block_work(tokens, operand.x.cols),
                            [&](std::int64_t begin, std::int64_t end, int thread) {
                              float* own = scratch + thread * own_elements;
                              for (std::int64_t i = begin; i < end; ++i) {
                                std::int64_t local = i;
                                const Projection* p = projections.data();
                                for (; local >= blocks_of(*p); ++p) local -= blocks_of(*p);
                                const Block block = block_at(local, tokens, stored_rows(p->weight));
                                block_products(workers.loops, operand, p->weight, block, own, p->y);
                              }
                            });
}

MatrixView<float> project_normed(Workers& workers, const NormedInput& input,
                                 std::span<const Weights> parts) {
  const std::int64_t rows = input.num_rows;
  std::int64_t cols = 0;
  for (const Weights& part : parts) cols += weight_rows(part);
  workers.scratch.reserve(operand_elements(rows, input.x.cols) + rows * cols +
                              project_elements(workers, parts.front(), rows),
                          kOperandPieces + 2);
  const Operand operand = make_operand(workers, input, parts.front());
  const MatrixView<float> y = {workers.scratch.take(rows * cols), rows, cols, cols};
  std::vector<Projection> projections;
  float* first = y.data;
  for (const Weights& part : parts) {
    projections.push_back({part, {first, rows, weight_rows(part), cols}});
    first += weight_rows(part);
  }
  project(workers, operand, projections);
  return y;
}

void linear_residual(Workers& workers, const LinearResidualArgs& a) {
  check(a);
  const std::int64_t tokens = a.x.rows;
  const std::int64_t rows = a.residual.cols;
  workers.scratch.reserve(
      tokens * (a.x.cols + rows + 1) + project_elements(workers, a.weight, tokens), 4);
  Operand operand = plain_operand(workers, a.x);
  operand.scale = a.x_scale;
  operand.token_factors = exponent_factors(workers, a.x_exponents, tokens);
  const MatrixView<float> y = {workers.scratch.take(tokens * rows), tokens, rows, rows};
  const std::array projections = {Projection{a.weight, y}};
  project(workers, operand, projections);
  workers.pool.parallel_for(tokens, rows, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t m = begin; m < end; ++m) add_to_residual(a.residual, m, y.row(m));
  });
}

void gate_up_swiglu(Workers& workers, const GateUpSwigluArgs& a) {
  check(a);
  const std::int64_t tokens = a.x.rows;
  const MatrixView<float> y = project_normed(
      workers, {a.x, nullptr, tokens, a.gain, a.eps, a.operand_scale}, parts_of(a.weights));
  // An exponential costs about as much as twenty multiply-adds.
  workers.pool.parallel_for(tokens, 20 * a.out.cols,
                            [&](std::int64_t begin, std::int64_t end, int) {
                              for (std::int64_t m = begin; m < end; ++m) {
                                finish_swiglu(workers, a, m, y.row(m));
                              }
                            });
}

}  // namespace fut::cpu
