// linear_residual and gate_up_swiglu with E4M3 weights and operands: exact for small integers, the
// contract's bits for any numbers, within the derived bound, and every clipped number counted.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "kernels/numeric/activation_scales.h"
#include "kernels/numeric/e4m3.h"
#include "tests/support/linear_cases.h"
#include "tests/support/packed_weights.h"

namespace fut::test {
namespace {

constexpr float kEps = 1e-5F;

// ---- linear_residual -----------------------------------------------------------------------------

struct ResidualInputs {
  Size size;
  DType residual_type;
  std::vector<float> x, residual;
  float x_scale = 0.25F;

  // Operands as E4M3 holds them, the residual as its type does.
  ResidualInputs(const Size& s, DType type, bool integers)
      : size(s),
        residual_type(type),
        x(rounded_row(DType::E4M3, integers ? integer_values(s.tokens * s.cols, 1, 16)
                                            : normal_values(s.tokens * s.cols, 1, 30.0F))),
        residual(rounded_row(type, integers ? integer_values(s.tokens * s.rows, 2, 100)
                                            : normal_values(s.tokens * s.rows, 2, 500.0F))) {}
  [[nodiscard]] Shape out_shape() const { return {size.tokens, size.rows}; }
};

std::vector<float> run(Backend& backend, const ResidualInputs& in, const E4m3Matrix& weight) {
  const GuardedActivation x(backend, DType::E4M3, {in.size.tokens, in.size.cols}, in.x);
  const GuardedActivation out(backend, in.residual_type, in.out_shape(), in.residual);
  backend.linear_residual(
      {.x = x.const_view(), .x_scale = in.x_scale, .weight = weight, .residual = out.view()});
  return out.values();
}

template <class Value, class Product>
std::vector<Value> expected_residual(const ResidualInputs& in, const Product& product) {
  std::vector<Value> expected;
  for (std::int64_t m = 0; m < in.size.tokens; ++m) {
    for (std::int64_t n = 0; n < in.size.rows; ++n) {
      const Value r(row_of(in.residual, m, in.size.rows)[static_cast<std::size_t>(n)]);
      const Value sum = r + product(n, row_of(in.x, m, in.size.cols));
      expected.push_back(rounded_to(in.residual_type, sum));
    }
  }
  return expected;
}

TEST(Fp8LinearResidual, IsExactForIntegersAndPowersOfTwo) {
  for (const CpuSetup& setup : cpu_setups()) {
    for (const Size& size : kSizes) {
      const GuardedE4m3 weight(*setup.backend, {size.rows, size.cols}, Scales::PowersOfTwo, 3);
      for (const DType type : kWide) {
        const ResidualInputs in(size, type, true);
        // In float64 and from the last column on: nothing but the residual's type rounds.
        const auto product = [&](std::int64_t n, std::span<const float> x) {
          double sum = 0;
          for (std::size_t k = x.size(); k-- > 0;) {
            sum += static_cast<double>(x[k]) * static_cast<double>(weight.row(n)[k]);
          }
          return static_cast<float>(sum * static_cast<double>(weight.scale(n) / in.x_scale));
        };
        EXPECT_TRUE(same_bits(expected_residual<float>(in, product),
                              run(*setup.backend, in, weight.view()), in.out_shape()))
            << name_of(setup, size, type);
      }
    }
  }
}

TEST(Fp8LinearResidual, AddsInTheContractsOrderAndStaysWithinTheBound) {
  for (const CpuSetup& setup : cpu_setups()) {
    for (const Size& size : kSizes) {
      const GuardedE4m3 weight(*setup.backend, {size.rows, size.cols}, Scales::Any, 3);
      for (const DType type : kWide) {
        const ResidualInputs in(size, type, false);
        const std::vector<float> out = run(*setup.backend, in, weight.view());
        EXPECT_TRUE(same_bits(expected_residual<float>(in,
                                                       [&](std::int64_t n, const auto& x) {
                                                         return weight.product(n, x, in.x_scale);
                                                       }),
                              out, in.out_shape()))
            << name_of(setup, size, type);
        EXPECT_TRUE(within_bounds(expected_residual<Bounded>(in,
                                                             [&](std::int64_t n, const auto& x) {
                                                               return weight.bounded_product(
                                                                   n, x, in.x_scale);
                                                             }),
                                  out, in.out_shape()))
            << name_of(setup, size, type);
      }
    }
  }
}

TEST(Fp8LinearResidual, KeepsNansInTheirOwnRow) {
  ResidualInputs in({3, 20, 128}, DType::BF16, false);
  in.x[static_cast<std::size_t>(in.size.cols) + 5] = kPoison;  // row 1
  for (const CpuSetup& setup : cpu_setups()) {
    const GuardedE4m3 weight(*setup.backend, {20, 128}, Scales::Any, 3);
    const std::vector<float> out = run(*setup.backend, in, weight.view());
    for (std::int64_t m = 0; m < in.size.tokens; ++m) {
      for (const float v : row_of(out, m, in.size.rows)) EXPECT_EQ(std::isnan(v), m == 1);
    }
  }
}

// ---- gate_up_swiglu ------------------------------------------------------------------------------

struct SwigluInputs {
  Size size;
  DType x_type;
  std::vector<float> x;
  float operand_scale, out_scale;
  float eps = kEps;

  SwigluInputs(const Size& s, DType type)
      : size(s),
        x_type(type),
        x(rounded_row(type, normal_values(s.tokens * s.cols, 1, 3.0F))),
        operand_scale(normalised_operand_scale(s.cols)),
        out_scale(16) {}
  [[nodiscard]] Shape out_shape() const { return {size.tokens, size.rows}; }
  [[nodiscard]] std::vector<float> operand(std::int64_t token) const {
    return normed_operand(DType::E4M3, row_of(x, token, size.cols), eps, operand_scale);
  }
};

std::vector<float> run_swiglu(Backend& backend, const SwigluInputs& in, const E4m3Matrix& weight) {
  const GuardedActivation x(backend, in.x_type, {in.size.tokens, in.size.cols}, in.x);
  const GuardedActivation out(backend, DType::E4M3, in.out_shape());
  backend.gate_up_swiglu({.x = x.const_view(),
                          .eps = in.eps,
                          .weights = Weights(weight),
                          .operand_scale = in.operand_scale,
                          .out_scale = in.out_scale,
                          .out = out.view()});
  return out.values();
}

// h * out_scale, not yet rounded; gate is output n, up is output F + n.
std::vector<float> scaled_swiglu(const SwigluInputs& in, const GuardedE4m3& weight) {
  std::vector<float> result;
  for (std::int64_t m = 0; m < in.size.tokens; ++m) {
    const std::vector<float> operand = in.operand(m);
    for (std::int64_t n = 0; n < in.size.rows; ++n) {
      const float gate = weight.product(n, operand, in.operand_scale);
      const float up = weight.product(in.size.rows + n, operand, in.operand_scale);
      result.push_back(silu_product(gate, up) * in.out_scale);
    }
  }
  return result;
}

TEST(Fp8GateUpSwiglu, GivesTheContractsBitsAndCountsWhatItClips) {
  for (const CpuSetup& setup : cpu_setups()) {
    for (const Size& size : kSizes) {
      const GuardedE4m3 weight(*setup.backend, {2 * size.rows, size.cols}, Scales::Any, 4);
      for (const DType x_type : kWide) {
        const SwigluInputs in(size, x_type);
        const std::vector<float> wide = scaled_swiglu(in, weight);
        const auto num_clipped = static_cast<std::uint64_t>(
            std::count_if(wide.begin(), wide.end(), [](float v) { return e4m3_saturates(v); }));
        const SaturationCounts before = setup.backend->saturations();
        EXPECT_TRUE(same_bits(rounded_row(DType::E4M3, wide),
                              run_swiglu(*setup.backend, in, weight.view()), in.out_shape()))
            << name_of(setup, size, x_type);
        const SaturationCounts after = setup.backend->saturations();
        EXPECT_EQ(after.swiglu_outputs - before.swiglu_outputs, num_clipped);
        EXPECT_EQ(after.operands, 0U) << "the scale of normalised inputs cannot saturate";
        if (size.tokens == 70) {
          EXPECT_GT(num_clipped, 0U);
        }
      }
    }
  }
}

// The outputs stay below 448, where a bound means something.
TEST(Fp8GateUpSwiglu, StaysWithinTheDerivedBound) {
  for (const CpuSetup& setup : cpu_setups()) {
    SwigluInputs in({3, 33, 384}, DType::BF16);
    in.out_scale = 0.5F;
    const GuardedE4m3 weight(*setup.backend, {66, 384}, Scales::Any, 4);
    std::vector<Bounded> expected;
    for (std::int64_t m = 0; m < in.size.tokens; ++m) {
      const std::vector<float> operand = in.operand(m);
      for (std::int64_t n = 0; n < in.size.rows; ++n) {
        const Bounded h =
            silu_product(weight.bounded_product(n, operand, in.operand_scale),
                         weight.bounded_product(in.size.rows + n, operand, in.operand_scale));
        expected.push_back(rounded_to(DType::E4M3, h * Bounded(in.out_scale)));
      }
    }
    EXPECT_TRUE(
        within_bounds(expected, run_swiglu(*setup.backend, in, weight.view()), in.out_shape()))
        << setup.name;
  }
}

// Integers whose norm is exact: the operand is x * 2^-3 * scale without any rounding, so that gate
// and up are exact and only silu rounds.
TEST(Fp8GateUpSwiglu, TakesExactOperandsAsTheyAre) {
  SwigluInputs in({17, 40, 256}, DType::F32);
  in.eps = 0;
  in.x = unit_rms_integers(in.size.tokens, in.size.cols, 9);
  for (const CpuSetup& setup : cpu_setups()) {
    const GuardedE4m3 weight(*setup.backend, {80, 256}, Scales::PowersOfTwo, 4);
    std::vector<float> expected;
    for (std::int64_t m = 0; m < in.size.tokens; ++m) {
      const auto exact = [&](std::int64_t n) {
        double sum = 0;
        for (std::size_t k = 0; k < 256; ++k) {
          sum += static_cast<double>(row_of(in.x, m, in.size.cols)[k]) / 8 *
                 static_cast<double>(weight.row(n)[k]);
        }
        return static_cast<float>(sum * static_cast<double>(weight.scale(n)));
      };
      for (std::int64_t n = 0; n < in.size.rows; ++n) {
        const float h = silu_product(exact(n), exact(in.size.rows + n));
        expected.push_back(rounded_to(DType::E4M3, h * in.out_scale));
      }
    }
    EXPECT_TRUE(same_bits(expected, run_swiglu(*setup.backend, in, weight.view()), in.out_shape()))
        << setup.name;
  }
}

// A row of one spike has the largest normalised number there is, sqrt(K).
TEST(Fp8GateUpSwiglu, TheScaleOfNormalisedInputsCannotSaturate) {
  for (const std::int64_t cols : {128, 256, 384, 4096}) {
    SwigluInputs in({1, 16, cols}, DType::F32);
    in.eps = 0;
    in.x.assign(static_cast<std::size_t>(cols), 0.0F);
    in.x[17] = -3e4F;
    const std::vector<CpuSetup> setups = cpu_setups();
    Backend& backend = *setups.back().backend;
    const GuardedE4m3 weight(backend, {32, cols}, Scales::Any, 4);
    run_swiglu(backend, in, weight.view());
    EXPECT_EQ(backend.saturations().operands, 0U) << cols;
    in.operand_scale *= 4;  // one beyond the rule is caught
    run_swiglu(backend, in, weight.view());
    EXPECT_EQ(backend.saturations().operands, 1U) << cols;
  }
}

TEST(Fp8MatrixOps, GiveTheSameBitsForEachTokenAlone) {
  const SwigluInputs in({70, 40, 384}, DType::BF16);
  const std::vector<CpuSetup> setups = cpu_setups();
  const GuardedE4m3 weight(*setups[0].backend, {80, 384}, Scales::Any, 4);
  const std::vector<float> all = run_swiglu(*setups[0].backend, in, weight.view());
  for (std::int64_t m = 0; m < in.size.tokens; m += 3) {
    SwigluInputs alone = in;
    alone.size.tokens = 1;
    const std::span<const float> row = row_of(in.x, m, in.size.cols);
    alone.x.assign(row.begin(), row.end());
    EXPECT_TRUE(same_bits(row_of(all, m, in.size.rows),
                          run_swiglu(*setups.back().backend, alone, weight.view()),
                          {1, in.size.rows}))
        << "token " << m;
  }
}

}  // namespace
}  // namespace fut::test
