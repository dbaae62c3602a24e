// linear_residual and gate_up_swiglu in float32, with weights of each dense type. Integer operands
// must give exact results, real ones stay within the derived bound, and neither the number of
// threads nor the rows beside a row may change a bit.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <span>
#include <vector>

#include "tests/support/backends.h"
#include "tests/support/matrix_reference.h"

namespace fut::test {
namespace {

constexpr DType kDTypes[] = {DType::F32, DType::F16, DType::BF16};
constexpr float kEps = 1e-5F;

// Around the borders of tiles and blocks, and shapes that no tile divides.
constexpr Size kSizes[] = {{1, 1, 1},    {1, 17, 33},  {1, 128, 256}, {5, 16, 2048},
                           {63, 20, 48}, {64, 33, 40}, {65, 31, 47},  {130, 5, 100}};

std::vector<float> run_linear_residual(Backend& backend, DType dtype, const Size& size,
                                       std::span<const float> x, std::span<const float> w,
                                       std::span<const float> residual) {
  const GuardedMatrix x_matrix(backend, {size.tokens, size.cols}, x);
  const GuardedWeight weight(backend, dtype, {size.rows, size.cols}, w);
  const GuardedMatrix out(backend, {size.tokens, size.rows}, residual);
  backend.linear_residual(
      {.x = x_matrix.const_view(), .weight = weight.view(), .residual = out.view()});
  return out.values();
}

TEST(LinearResidual, IsExactForIntegers) {
  for (const CpuSetup& setup : cpu_setups()) {
    for (const Size& size : kSizes) {
      const std::vector<float> x = integer_values(size.tokens * size.cols, 1, 16);
      const std::vector<float> w = integer_values(size.rows * size.cols, 2, 16);
      const std::vector<float> residual = integer_values(size.tokens * size.rows, 3, 1000);
      std::vector<float> expected;
      for (std::int64_t m = 0; m < size.tokens; ++m) {
        for (std::int64_t n = 0; n < size.rows; ++n) {
          double sum = residual[static_cast<std::size_t>(m * size.rows + n)];
          for (std::int64_t k = 0; k < size.cols; ++k) {
            sum += static_cast<double>(x[static_cast<std::size_t>(m * size.cols + k)]) *
                   static_cast<double>(w[static_cast<std::size_t>(n * size.cols + k)]);
          }
          expected.push_back(static_cast<float>(sum));
        }
      }
      for (const DType dtype : kDTypes) {
        EXPECT_TRUE(same_bits(expected,
                              run_linear_residual(*setup.backend, dtype, size, x, w, residual),
                              {size.tokens, size.rows}))
            << setup.name << ", " << dtype_name(dtype) << ", M " << size.tokens << " N "
            << size.rows << " K " << size.cols;
      }
    }
  }
}

TEST(LinearResidual, AddsInTheContractsOrder) {
  const Size size = {65, 33, 100};
  const std::vector<float> x = normal_values(size.tokens * size.cols, 1);
  const std::vector<float> w = normal_values(size.rows * size.cols, 2);
  const std::vector<float> residual = normal_values(size.tokens * size.rows, 3);
  std::vector<float> expected;
  for (std::int64_t m = 0; m < size.tokens; ++m) {
    for (std::int64_t n = 0; n < size.rows; ++n) {
      expected.push_back(residual[static_cast<std::size_t>(m * size.rows + n)] +
                         dot_of(row_of(x, m, size.cols), row_of(w, n, size.cols)));
    }
  }
  for (const CpuSetup& setup : cpu_setups()) {
    EXPECT_TRUE(same_bits(expected,
                          run_linear_residual(*setup.backend, DType::F32, size, x, w, residual),
                          {size.tokens, size.rows}))
        << setup.name;
  }
}

TEST(LinearResidual, KeepsNansAndInfinitiesInTheirOwnRow) {
  const Size size = {3, 5, 20};
  std::vector<float> x = normal_values(size.tokens * size.cols, 1);
  x[static_cast<std::size_t>(size.cols)] = kPoison;  // row 1
  const std::vector<float> w = normal_values(size.rows * size.cols, 2);
  const std::vector<float> residual(static_cast<std::size_t>(size.tokens * size.rows));
  for (const CpuSetup& setup : cpu_setups()) {
    const std::vector<float> out =
        run_linear_residual(*setup.backend, DType::F32, size, x, w, residual);
    for (std::int64_t m = 0; m < size.tokens; ++m) {
      for (const float v : row_of(out, m, size.rows)) EXPECT_EQ(std::isnan(v), m == 1);
    }
  }
}

struct GateUpInputs {
  Size size;
  std::vector<float> x, gain, gate, up;

  explicit GateUpInputs(const Size& s)
      : size(s),
        x(normal_values(s.tokens * s.cols, 1, 3.0F)),
        gain(normal_values(s.cols, 2)),
        gate(normal_values(s.rows * s.cols, 3, 0.3F)),
        up(normal_values(s.rows * s.cols, 4, 0.3F)) {}
};

std::vector<float> run_gate_up(Backend& backend, DType dtype, const GateUpInputs& in) {
  const Size& size = in.size;
  const GuardedMatrix x(backend, {size.tokens, size.cols}, in.x);
  const Guarded<float> gain(backend, in.gain);
  const GuardedWeight gate(backend, dtype, {size.rows, size.cols}, in.gate);
  const GuardedWeight up(backend, dtype, {size.rows, size.cols}, in.up);
  const GuardedMatrix out(backend, {size.tokens, size.rows});
  backend.gate_up_swiglu({.x = x.const_view(),
                          .gain = gain.data(),
                          .eps = kEps,
                          .weights = GateUpMatrices{gate.view(), up.view()},
                          .out = out.view()});
  return out.values();
}

std::vector<Bounded> expected_gate_up(Backend& backend, DType dtype, const GateUpInputs& in) {
  const Shape weight_shape = {in.size.rows, in.size.cols};
  const GuardedWeight gate(backend, dtype, weight_shape, in.gate);
  const GuardedWeight up(backend, dtype, weight_shape, in.up);
  std::vector<Bounded> expected;
  for (std::int64_t m = 0; m < in.size.tokens; ++m) {
    const std::vector<Bounded> h = bounded_normed_row(row_of(in.x, m, in.size.cols), in.gain, kEps);
    for (std::int64_t n = 0; n < in.size.rows; ++n) {
      const Bounded g = contract_dot(h, bounded(row_of(gate.rounded(), n, in.size.cols)));
      const Bounded u = contract_dot(h, bounded(row_of(up.rounded(), n, in.size.cols)));
      expected.push_back(silu_product(g, u));
    }
  }
  return expected;
}

TEST(GateUpSwiglu, StaysWithinTheDerivedBound) {
  for (const CpuSetup& setup : cpu_setups()) {
    for (const Size& size : kSizes) {
      const GateUpInputs in(size);
      for (const DType dtype : kDTypes) {
        EXPECT_TRUE(within_bounds(expected_gate_up(*setup.backend, dtype, in),
                                  run_gate_up(*setup.backend, dtype, in), {size.tokens, size.rows}))
            << setup.name << ", " << dtype_name(dtype) << ", M " << size.tokens << " N "
            << size.rows << " K " << size.cols;
      }
    }
  }
}

TEST(GateUpSwiglu, SaturatesWithoutNanForHugeGates) {
  GateUpInputs in({2, 3, 16});
  std::fill(in.x.begin(), in.x.end(), 1.0F);
  std::fill(in.gain.begin(), in.gain.end(), 1.0F);
  std::fill(in.up.begin(), in.up.end(), 1.0F / 16);
  for (const float gate : {1e4F, -1e4F}) {
    std::fill(in.gate.begin(), in.gate.end(), gate);
    for (const CpuSetup& setup : cpu_setups()) {
      for (const float v : run_gate_up(*setup.backend, DType::F32, in)) {
        EXPECT_TRUE(std::isfinite(v)) << gate;
        EXPECT_EQ(v > 1, gate > 0) << gate;  // silu of the huge, and zero
      }
    }
  }
}

TEST(GateUpSwiglu, GivesTheSameBitsForStackedWeights) {
  const GateUpInputs in({5, 33, 40});
  std::vector<float> both = in.gate;
  both.insert(both.end(), in.up.begin(), in.up.end());
  for (const CpuSetup& setup : cpu_setups()) {
    Backend& backend = *setup.backend;
    const GuardedMatrix x(backend, {in.size.tokens, in.size.cols}, in.x);
    const Guarded<float> gain(backend, in.gain);
    const GuardedWeight stacked(backend, DType::BF16, {2 * in.size.rows, in.size.cols}, both);
    const GuardedMatrix out(backend, {in.size.tokens, in.size.rows});
    backend.gate_up_swiglu({.x = x.const_view(),
                            .gain = gain.data(),
                            .eps = kEps,
                            .weights = stacked.view(),
                            .out = out.view()});
    EXPECT_TRUE(same_bits(run_gate_up(backend, DType::BF16, in), out.values(),
                          {in.size.tokens, in.size.rows}));
  }
}

// One result for every build and number of threads, and for every row alone.
TEST(MatrixOps, GiveTheSameBitsOnEverySetupAndForEachRowAlone) {
  const Size size = {67, 37, 100};
  const std::vector<CpuSetup> setups = cpu_setups();
  const GateUpInputs in(size);
  for (const DType dtype : kDTypes) {
    const std::vector<float> first = run_gate_up(*setups[0].backend, dtype, in);
    for (const CpuSetup& setup : setups) {
      EXPECT_TRUE(
          same_bits(first, run_gate_up(*setup.backend, dtype, in), {size.tokens, size.rows}))
          << setup.name;
    }
    for (std::int64_t m = 0; m < size.tokens; m += 11) {
      GateUpInputs alone = in;
      alone.size.tokens = 1;
      const std::span<const float> row = row_of(in.x, m, size.cols);
      alone.x.assign(row.begin(), row.end());
      EXPECT_TRUE(same_bits(row_of(first, m, size.rows),
                            run_gate_up(*setups.back().backend, dtype, alone), {1, size.rows}))
          << "row " << m;
    }
  }
}

}  // namespace
}  // namespace fut::test
