// linear_residual and gate_up_swiglu with BF16 weights whose gain is folded in: operands, outputs
// and the residual of a prefill are BF16, decode's residual is float32.
#include <cmath>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/support/backends.h"
#include "tests/support/linear_cases.h"
#include "tests/support/matrix_reference.h"

namespace fut::test {
namespace {

constexpr float kEps = 1e-5F;

// ---- linear_residual -----------------------------------------------------------------------------

struct ResidualInputs {
  Size size;
  DType residual_type;
  std::vector<float> x, weight, residual;

  ResidualInputs(const Size& s, DType type, bool integers) : size(s), residual_type(type) {
    const auto values = [&](std::int64_t count, std::uint32_t seed, DType held) {
      return rounded_row(
          held, integers ? integer_values(count, seed, 16) : normal_values(count, seed, 3.0F));
    };
    x = values(s.tokens * s.cols, 1, DType::BF16);
    weight = values(s.rows * s.cols, 2, DType::BF16);
    residual = values(s.tokens * s.rows, 3, type);
  }
  [[nodiscard]] Shape out_shape() const { return {size.tokens, size.rows}; }
};

std::vector<float> run(Backend& backend, const ResidualInputs& in) {
  const GuardedActivation x(backend, DType::BF16, {in.size.tokens, in.size.cols}, in.x);
  const GuardedWeight weight(backend, DType::BF16, {in.size.rows, in.size.cols}, in.weight);
  const GuardedActivation out(backend, in.residual_type, in.out_shape(), in.residual);
  backend.linear_residual({.x = x.const_view(), .weight = weight.view(), .residual = out.view()});
  return out.values();
}

// `product(x row, weight row)`, added to the residual and rounded once.
template <class Value, class Product>
std::vector<Value> expected_residual(const ResidualInputs& in, const Product& product) {
  std::vector<Value> expected;
  for (std::int64_t m = 0; m < in.size.tokens; ++m) {
    for (std::int64_t n = 0; n < in.size.rows; ++n) {
      const Value r(row_of(in.residual, m, in.size.rows)[static_cast<std::size_t>(n)]);
      const Value sum =
          r + product(row_of(in.x, m, in.size.cols), row_of(in.weight, n, in.size.cols));
      expected.push_back(rounded_to(in.residual_type, sum));
    }
  }
  return expected;
}

TEST(Bf16LinearResidual, IsExactForIntegersUpToTheRoundingOfTheResidual) {
  for (const CpuSetup& setup : cpu_setups()) {
    for (const Size& size : kSizes) {
      for (const DType type : kWide) {
        const ResidualInputs in(size, type, true);
        const auto product = [](std::span<const float> x, std::span<const float> w) {
          double sum = 0;
          for (std::size_t k = x.size(); k-- > 0;) {
            sum += static_cast<double>(x[k]) * static_cast<double>(w[k]);
          }
          return static_cast<float>(sum);
        };
        EXPECT_TRUE(same_bits(expected_residual<float>(in, product), run(*setup.backend, in),
                              in.out_shape()))
            << name_of(setup, size, type);
      }
    }
  }
}

TEST(Bf16LinearResidual, AddsInTheContractsOrderAndStaysWithinTheBound) {
  for (const CpuSetup& setup : cpu_setups()) {
    for (const Size& size : kSizes) {
      for (const DType type : kWide) {
        const ResidualInputs in(size, type, false);
        const std::vector<float> out = run(*setup.backend, in);
        EXPECT_TRUE(
            same_bits(expected_residual<float>(in, [](auto x, auto w) { return dot_of(x, w); }),
                      out, in.out_shape()))
            << name_of(setup, size, type);
        EXPECT_TRUE(within_bounds(
            expected_residual<Bounded>(
                in, [](auto x, auto w) { return contract_dot(bounded(x), bounded(w)); }),
            out, in.out_shape()))
            << name_of(setup, size, type);
      }
    }
  }
}

TEST(Bf16LinearResidual, KeepsNansInTheirOwnRow) {
  ResidualInputs in({3, 20, 128}, DType::BF16, false);
  in.x[static_cast<std::size_t>(in.size.cols) + 5] = kPoison;  // row 1
  for (const CpuSetup& setup : cpu_setups()) {
    const std::vector<float> out = run(*setup.backend, in);
    for (std::int64_t m = 0; m < in.size.tokens; ++m) {
      for (const float v : row_of(out, m, in.size.rows)) EXPECT_EQ(std::isnan(v), m == 1);
    }
  }
}

// ---- gate_up_swiglu ------------------------------------------------------------------------------

struct SwigluInputs {
  Size size;
  DType x_type;
  std::vector<float> x, gate, up;

  SwigluInputs(const Size& s, DType type)
      : size(s),
        x_type(type),
        x(rounded_row(type, normal_values(s.tokens * s.cols, 1, 3.0F))),
        gate(rounded_row(DType::BF16, normal_values(s.rows * s.cols, 2, 0.3F))),
        up(rounded_row(DType::BF16, normal_values(s.rows * s.cols, 3, 0.3F))) {}
  [[nodiscard]] Shape out_shape() const { return {size.tokens, size.rows}; }
};

std::vector<float> run_swiglu(Backend& backend, const SwigluInputs& in, bool is_stacked) {
  const GuardedActivation x(backend, in.x_type, {in.size.tokens, in.size.cols}, in.x);
  const GuardedWeight gate(backend, DType::BF16, {in.size.rows, in.size.cols}, in.gate);
  const GuardedWeight up(backend, DType::BF16, {in.size.rows, in.size.cols}, in.up);
  std::vector<float> both = in.gate;
  both.insert(both.end(), in.up.begin(), in.up.end());
  const GuardedWeight stacked(backend, DType::BF16, {2 * in.size.rows, in.size.cols}, both);
  const GuardedActivation out(backend, DType::BF16, in.out_shape());
  GateUpSwigluArgs args;
  args.x = x.const_view();
  args.eps = kEps;
  args.weights = GateUpMatrices{gate.view(), up.view()};
  if (is_stacked) args.weights = Weights(stacked.view());
  args.out = out.view();
  backend.gate_up_swiglu(args);
  return out.values();
}

// `combine(operand, gate row, up row)` for each token and channel.
template <class Value, class Combine>
std::vector<Value> expected_swiglu(const SwigluInputs& in, const Combine& combine) {
  std::vector<Value> expected;
  for (std::int64_t m = 0; m < in.size.tokens; ++m) {
    const std::vector<float> operand =
        normed_operand(DType::BF16, row_of(in.x, m, in.size.cols), kEps);
    for (std::int64_t n = 0; n < in.size.rows; ++n) {
      expected.push_back(rounded_to(DType::BF16, combine(operand, row_of(in.gate, n, in.size.cols),
                                                         row_of(in.up, n, in.size.cols))));
    }
  }
  return expected;
}

TEST(Bf16GateUpSwiglu, GivesTheContractsBitsApartAndStacked) {
  for (const CpuSetup& setup : cpu_setups()) {
    for (const Size& size : kSizes) {
      for (const DType x_type : kWide) {
        const SwigluInputs in(size, x_type);
        const auto expected =
            expected_swiglu<float>(in, [](const auto& h, const auto& gate, const auto& up) {
              return silu_product(dot_of(h, gate), dot_of(h, up));
            });
        for (const bool is_stacked : {false, true}) {
          EXPECT_TRUE(
              same_bits(expected, run_swiglu(*setup.backend, in, is_stacked), in.out_shape()))
              << name_of(setup, size, x_type);
        }
      }
    }
  }
}

TEST(Bf16GateUpSwiglu, StaysWithinTheDerivedBound) {
  const SwigluInputs in({5, 33, 384}, DType::BF16);
  const auto expected =
      expected_swiglu<Bounded>(in, [](const auto& h, const auto& gate, const auto& up) {
        return silu_product(contract_dot(bounded(h), bounded(gate)),
                            contract_dot(bounded(h), bounded(up)));
      });
  for (const CpuSetup& setup : cpu_setups()) {
    EXPECT_TRUE(within_bounds(expected, run_swiglu(*setup.backend, in, true), in.out_shape()))
        << setup.name;
  }
}

// The test can fail: without the rounding of the operand the bits are others.
TEST(Bf16GateUpSwiglu, IsNotTheProductOfUnroundedOperands) {
  const SwigluInputs in({5, 33, 384}, DType::F32);
  std::vector<float> unrounded;
  for (std::int64_t m = 0; m < in.size.tokens; ++m) {
    const std::vector<float> h = normed_operand(DType::F32, row_of(in.x, m, in.size.cols), kEps);
    for (std::int64_t n = 0; n < in.size.rows; ++n) {
      const float product = silu_product(dot_of(h, row_of(in.gate, n, in.size.cols)),
                                         dot_of(h, row_of(in.up, n, in.size.cols)));
      unrounded.push_back(rounded_to(DType::BF16, product));
    }
  }
  const std::vector<CpuSetup> setups = cpu_setups();
  EXPECT_FALSE(same_bits(unrounded, run_swiglu(*setups[0].backend, in, true), in.out_shape()));
}

TEST(Bf16MatrixOps, GiveTheSameBitsForEachTokenAlone) {
  const SwigluInputs in({70, 40, 384}, DType::BF16);
  const std::vector<CpuSetup> setups = cpu_setups();
  const std::vector<float> all = run_swiglu(*setups[0].backend, in, true);
  for (std::int64_t m = 0; m < in.size.tokens; m += 3) {
    SwigluInputs alone = in;
    alone.size.tokens = 1;
    const std::span<const float> row = row_of(in.x, m, in.size.cols);
    alone.x.assign(row.begin(), row.end());
    EXPECT_TRUE(same_bits(row_of(all, m, in.size.rows),
                          run_swiglu(*setups.back().backend, alone, false), {1, in.size.rows}))
        << "token " << m;
  }
}

}  // namespace
}  // namespace fut::test
