// linear_residual and gate_up_swiglu with INT4 weights, against a reference that reads the packed
// bytes code by code: exact for integers and powers of two, the contract's bits for any numbers,
// and within the derived bound whatever the order inside a group.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "kernels/numeric/activation_scales.h"
#include "tests/support/packed_weights.h"

namespace fut::test {
namespace {

using layout::RowOrder;

constexpr float kEps = 1e-5F;

// Tokens around the borders of tiles and blocks; outputs that fill strips, and that do not.
struct Case {
  Size size;
  int group;
};
constexpr Case kCases[] = {{{1, 16, 128}, 128},  {{1, 40, 128}, 64},  {{2, 40, 256}, 128},
                           {{3, 64, 384}, 128},  {{17, 40, 384}, 64}, {{70, 40, 256}, 64},
                           {{70, 24, 384}, 128}, {{2, 16, 4096}, 128}};

std::string name_of(const CpuSetup& setup, const Case& c) {
  return setup.name + ", M " + std::to_string(c.size.tokens) + " N " + std::to_string(c.size.rows) +
         " K " + std::to_string(c.size.cols) + ", groups of " + std::to_string(c.group);
}

// ---- linear_residual -----------------------------------------------------------------------------

struct ResidualInputs {
  Size size;
  std::vector<float> x, residual;
  std::vector<std::int32_t> exponents;  // empty: none

  ResidualInputs(const Size& s, bool integers)
      : size(s),
        x(integers ? integer_values(s.tokens * s.cols, 1, 8) : normal_values(s.tokens * s.cols, 1)),
        residual(integers ? integer_values(s.tokens * s.rows, 2, 100)
                          : normal_values(s.tokens * s.rows, 2)) {
    for (std::int64_t m = 0; m < s.tokens; ++m) {
      exponents.push_back(static_cast<std::int32_t>(m % 4));
    }
  }
  [[nodiscard]] Shape out_shape() const { return {size.tokens, size.rows}; }
  [[nodiscard]] float factor(std::int64_t token) const {
    return exponents.empty() ? 1.0F : std::ldexp(1.0F, exponents[static_cast<std::size_t>(token)]);
  }
};

std::vector<float> run(Backend& backend, const ResidualInputs& in, const Int4Matrix& weight) {
  const GuardedActivation x(backend, DType::F16, {in.size.tokens, in.size.cols}, in.x);
  const Guarded<std::int32_t> exponents(backend, in.exponents);
  const GuardedMatrix out(backend, in.out_shape(), in.residual);
  backend.linear_residual({.x = x.const_view(),
                           .x_exponents = in.exponents.empty() ? nullptr : exponents.data(),
                           .weight = weight,
                           .residual = out.view()});
  return out.values();
}

// residual + product * 2^exponent for each token and output.
template <class Value, class Product>
std::vector<Value> expected_residual(const ResidualInputs& in, const Product& product) {
  std::vector<Value> expected;
  for (std::int64_t m = 0; m < in.size.tokens; ++m) {
    const std::vector<float> x = rounded_row(DType::F16, row_of(in.x, m, in.size.cols));
    for (std::int64_t n = 0; n < in.size.rows; ++n) {
      const Value scaled = product(n, x) * Value(in.factor(m));
      expected.push_back(Value(row_of(in.residual, m, in.size.rows)[static_cast<std::size_t>(n)]) +
                         scaled);
    }
  }
  return expected;
}

TEST(Int4LinearResidual, IsExactForIntegersAndPowersOfTwo) {
  for (const CpuSetup& setup : cpu_setups()) {
    for (const Case& c : kCases) {
      const GuardedInt4 weight(*setup.backend, RowOrder::natural(static_cast<int>(c.size.rows)),
                               c.size.cols, c.group, Scales::PowersOfTwo, 3);
      for (const bool with_exponents : {true, false}) {
        ResidualInputs in(c.size, true);
        if (!with_exponents) in.exponents.clear();
        // In float64, the groups in another order: nothing is ever rounded.
        const auto expected = expected_residual<double>(in, [&](std::int64_t n, const auto& x) {
          double sum = 0;
          for (std::int64_t k = c.size.cols - 1; k >= 0; --k) {
            const auto i = static_cast<std::size_t>(k);
            sum += static_cast<double>(weight.scale(n, k / c.group)) *
                   static_cast<double>(weight.codes(n)[i]) * static_cast<double>(x[i]);
          }
          return sum;
        });
        const std::vector<float> wanted(expected.begin(), expected.end());
        EXPECT_TRUE(same_bits(wanted, run(*setup.backend, in, weight.view()), in.out_shape()))
            << name_of(setup, c);
      }
    }
  }
}

TEST(Int4LinearResidual, AddsInTheContractsOrderAndStaysWithinTheBound) {
  for (const CpuSetup& setup : cpu_setups()) {
    for (const Case& c : kCases) {
      const GuardedInt4 weight(*setup.backend, RowOrder::natural(static_cast<int>(c.size.rows)),
                               c.size.cols, c.group, Scales::Any, 3);
      const ResidualInputs in(c.size, false);
      const std::vector<float> out = run(*setup.backend, in, weight.view());
      EXPECT_TRUE(same_bits(
          expected_residual<float>(in, [&](auto n, const auto& x) { return weight.product(n, x); }),
          out, in.out_shape()))
          << name_of(setup, c);
      EXPECT_TRUE(within_bounds(
          expected_residual<Bounded>(
              in, [&](auto n, const auto& x) { return weight.bounded_product(n, x); }),
          out, in.out_shape()))
          << name_of(setup, c);
    }
  }
}

// The reference would notice a packer and a kernel that agree on a wrong place.
TEST(Int4LinearResidual, GivesOtherResultsForNibblesOrScalesInOtherPlaces) {
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups.back().backend;
  const Case c = {{2, 32, 128}, 128};
  const GuardedInt4 weight(backend, RowOrder::natural(32), 128, 128, Scales::Any, 3);
  const ResidualInputs in(c.size, false);
  const std::vector<float> expected =
      expected_residual<float>(in, [&](auto n, const auto& x) { return weight.product(n, x); });

  std::vector<std::uint8_t> swapped_nibbles = weight.packed();
  for (std::size_t i = 0; i < 1024; ++i) {
    const int byte = swapped_nibbles[i];
    swapped_nibbles[i] = static_cast<std::uint8_t>(byte << 4 | byte >> 4);
  }
  std::vector<std::uint8_t> swapped_scales = weight.packed();
  std::swap_ranges(swapped_scales.begin() + 1024, swapped_scales.begin() + 1026,
                   swapped_scales.begin() + 1026);
  std::vector<std::uint8_t> swapped_words = weight.packed();
  std::swap_ranges(swapped_words.begin(), swapped_words.begin() + 4, swapped_words.begin() + 4);
  for (const auto& bytes : {swapped_nibbles, swapped_scales, swapped_words}) {
    const GuardedInt4 wrong(backend, weight, bytes);
    EXPECT_FALSE(same_bits(expected, run(backend, in, wrong.view()), in.out_shape()));
  }
  EXPECT_TRUE(same_bits(expected, run(backend, in, weight.view()), in.out_shape()));
}

TEST(Int4LinearResidual, KeepsNansInTheirOwnRow) {
  ResidualInputs in({3, 40, 128}, false);
  in.x[static_cast<std::size_t>(in.size.cols) + 5] = kPoison;  // row 1
  for (const CpuSetup& setup : cpu_setups()) {
    const GuardedInt4 weight(*setup.backend, RowOrder::natural(40), 128, 128, Scales::Any, 3);
    const std::vector<float> out = run(*setup.backend, in, weight.view());
    for (std::int64_t m = 0; m < in.size.tokens; ++m) {
      for (const float v : row_of(out, m, in.size.rows)) EXPECT_EQ(std::isnan(v), m == 1);
    }
  }
}

TEST(Int4LinearResidual, RefusesAnExponentThatNoOpHasMade) {
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups.front().backend;
  const GuardedInt4 weight(backend, RowOrder::natural(16), 128, 128, Scales::Any, 3);
  for (const std::int32_t exponent : {-1, 128}) {
    ResidualInputs in({1, 16, 128}, false);
    in.exponents = {exponent};
    EXPECT_THROW(run(backend, in, weight.view()), Error) << exponent;
  }
}

// ---- gate_up_swiglu ------------------------------------------------------------------------------

struct SwigluResult {
  std::vector<float> out;
  std::vector<std::int32_t> exponents;
};

SwigluResult run_swiglu(Backend& backend, const Size& size, const std::vector<float>& x_values,
                        const Int4Matrix& weight) {
  const GuardedMatrix x(backend, {size.tokens, size.cols}, x_values);
  const GuardedActivation out(backend, DType::F16, {size.tokens, size.rows});
  const Guarded<std::int32_t> exponents(
      backend, std::vector<std::int32_t>(static_cast<std::size_t>(size.tokens), -7));
  backend.gate_up_swiglu({.x = x.const_view(),
                          .eps = kEps,
                          .weights = Weights(weight),
                          .out_exponents = exponents.data(),
                          .out = out.view()});
  return {out.values(), exponents.values()};
}

// One token: h before it is scaled, gate being output n and up output F + n.
std::vector<float> swiglu_row(const GuardedInt4& weight, std::int64_t rows,
                              std::span<const float> x) {
  const std::vector<float> operand = rounded_row(DType::F16, x);
  const float r = inverse_rms(x, kEps);
  std::vector<float> h;
  for (std::int64_t n = 0; n < rows; ++n) {
    h.push_back(
        silu_product(r * weight.product(n, operand), r * weight.product(rows + n, operand)));
  }
  return h;
}

SwigluResult expected_swiglu(const GuardedInt4& weight, const Size& size,
                             const std::vector<float>& x) {
  SwigluResult expected;
  for (std::int64_t m = 0; m < size.tokens; ++m) {
    const std::vector<float> h = swiglu_row(weight, size.rows, row_of(x, m, size.cols));
    float largest = 0;
    for (const float v : h) largest = std::max(largest, std::fabs(v));
    const std::int32_t e = swiglu_exponent(largest);
    for (const float v : h) {
      expected.out.push_back(rounded_to(DType::F16, std::ldexp(v, -e)));
    }
    expected.exponents.push_back(e);
  }
  return expected;
}

// The same codes with every scale 128 times as large: a SwiGLU output that leaves F16's range.
std::vector<std::uint8_t> with_large_scales(const GuardedInt4& weight) {
  std::vector<std::uint8_t> bytes = weight.packed();
  const layout::Int4Tile tile = weight.view().tile;
  for (int row = 0; row < 16 * tile.num_strips(); ++row) {
    for (int g = 0; g < tile.num_groups(); ++g) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + tile.scale_offset(row, g), sizeof(bits));
      bits = static_cast<std::uint16_t>(bits_of(DType::BF16, 128 * value_of(DType::BF16, bits)));
      std::memcpy(bytes.data() + tile.scale_offset(row, g), &bits, sizeof(bits));
    }
  }
  return bytes;
}

TEST(Int4GateUpSwiglu, GivesTheContractsBitsInsideF16AndBeyondIt) {
  for (const CpuSetup& setup : cpu_setups()) {
    for (const Case& c : kCases) {
      const GuardedInt4 small(*setup.backend, RowOrder::gate_up(static_cast<int>(c.size.rows)),
                              c.size.cols, c.group, Scales::Any, 4);
      const GuardedInt4 large(*setup.backend, small, with_large_scales(small));
      const std::vector<float> x = normal_values(c.size.tokens * c.size.cols, 1, 2.0F);
      for (const GuardedInt4* weight : {&small, &large}) {
        const SwigluResult expected = expected_swiglu(*weight, c.size, x);
        const SwigluResult actual = run_swiglu(*setup.backend, c.size, x, weight->view());
        EXPECT_TRUE(same_bits(expected.out, actual.out, {c.size.tokens, c.size.rows}))
            << name_of(setup, c);
        EXPECT_EQ(expected.exponents, actual.exponents) << name_of(setup, c);
        EXPECT_EQ(actual.exponents[0] > 0, weight == &large) << name_of(setup, c);
      }
    }
  }
}

TEST(Int4GateUpSwiglu, StaysWithinTheDerivedBound) {
  const Size size = {3, 40, 384};
  const std::vector<float> x = normal_values(size.tokens * size.cols, 1, 2.0F);
  for (const CpuSetup& setup : cpu_setups()) {
    const GuardedInt4 weight(*setup.backend, RowOrder::gate_up(40), size.cols, 128, Scales::Any, 4);
    std::vector<Bounded> expected;
    for (std::int64_t m = 0; m < size.tokens; ++m) {
      const std::span<const float> row = row_of(x, m, size.cols);
      const std::vector<float> operand = rounded_row(DType::F16, row);
      const Bounded r = bounded_inverse_rms(row, kEps);
      for (std::int64_t n = 0; n < size.rows; ++n) {
        const Bounded h = silu_product(r * weight.bounded_product(n, operand),
                                       r * weight.bounded_product(size.rows + n, operand));
        expected.push_back(rounded_to(DType::F16, h));
      }
    }
    const SwigluResult actual = run_swiglu(*setup.backend, size, x, weight.view());
    EXPECT_TRUE(within_bounds(expected, actual.out, {size.tokens, size.rows})) << setup.name;
    EXPECT_EQ(actual.exponents, (std::vector<std::int32_t>{0, 0, 0}));  // nothing near 2^15
  }
}

// Weights of one code and one scale: gate = up = scale * code * sum of x, times r.
std::vector<std::uint8_t> uniform_bytes(const Int4Matrix& like, float scale) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(like.tile.bytes()));
  for (int row = 0; row < 16 * like.tile.num_strips(); ++row) {
    for (int col = 0; col < like.tile.cols; ++col) {
      layout::write_nibble(bytes.data(), like.tile.slot(row, col), layout::kInt4CodeBias + 1);
    }
    for (int g = 0; g < like.tile.num_groups(); ++g) {
      const auto bits = static_cast<std::uint16_t>(bits_of(DType::BF16, scale));
      std::memcpy(bytes.data() + like.tile.scale_offset(row, g), &bits, sizeof(bits));
    }
  }
  return bytes;
}

// h = gate * up = (scale * 128)^2 for a row of ones, nearly: from 2^15 on the token is scaled down
// to between 2^14 and 2^15, however large it is.
TEST(Int4GateUpSwiglu, GuardsF16ByAPowerOfTwoForEachToken) {
  const std::vector<float> ones(128, 1.0F);
  for (const CpuSetup& setup : cpu_setups()) {
    const GuardedInt4 like(*setup.backend, RowOrder::gate_up(16), 128, 128, Scales::Any, 4);
    for (const float scale : {0.5F, 1.25F, 1.5F, 64.0F, 0x1p40F}) {
      const GuardedInt4 weight(*setup.backend, like, uniform_bytes(like.view(), scale));
      const float h = swiglu_row(weight, 1, ones)[0];
      const SwigluResult actual = run_swiglu(*setup.backend, {1, 16, 128}, ones, weight.view());
      const std::int32_t e = actual.exponents[0];
      EXPECT_EQ(e > 0, h > 0x1p15F) << scale;
      for (const float v : actual.out) {
        EXPECT_EQ(v, rounded_to(DType::F16, std::ldexp(h, -e))) << scale;
        EXPECT_LE(v, 0x1p15F);
        if (e > 0) {
          EXPECT_GT(v, 0x1p14F) << scale;
        }
      }
    }
  }
}

// Infinite and undefined tokens get no exponent, stop at F16's largest number or stay a NaN, and do
// not touch their neighbours.
TEST(Int4GateUpSwiglu, SaturatesWhatIsInfiniteInItsOwnTokenAlone) {
  const Size size = {3, 16, 128};
  std::vector<float> x(static_cast<std::size_t>(size.tokens * size.cols), 1.0F);
  x[static_cast<std::size_t>(2 * size.cols)] = kPoison;
  for (const CpuSetup& setup : cpu_setups()) {
    const GuardedInt4 like(*setup.backend, RowOrder::gate_up(16), 128, 128, Scales::Any, 4);
    const GuardedInt4 weight(*setup.backend, like, uniform_bytes(like.view(), 0x1p100F));
    const SwigluResult actual = run_swiglu(*setup.backend, size, x, weight.view());
    EXPECT_EQ(actual.exponents, (std::vector<std::int32_t>{0, 0, 0}));
    for (std::int64_t m = 0; m < size.tokens; ++m) {
      for (const float v : row_of(actual.out, m, size.rows)) {
        EXPECT_TRUE(m == 2 ? std::isnan(v) : v == 65504.0F) << v;
      }
    }
  }
}

TEST(Int4MatrixOps, GiveTheSameBitsForEachTokenAlone) {
  const Size size = {70, 40, 384};
  const std::vector<CpuSetup> setups = cpu_setups();
  const GuardedInt4 weight(*setups[0].backend, RowOrder::gate_up(40), size.cols, 64, Scales::Any,
                           4);
  const std::vector<float> x = normal_values(size.tokens * size.cols, 1, 20.0F);
  const SwigluResult all = run_swiglu(*setups[0].backend, size, x, weight.view());
  for (std::int64_t m = 0; m < size.tokens; m += 3) {
    const std::span<const float> row = row_of(x, m, size.cols);
    const SwigluResult one = run_swiglu(*setups.back().backend, {1, size.rows, size.cols},
                                        {row.begin(), row.end()}, weight.view());
    EXPECT_TRUE(same_bits(row_of(all.out, m, size.rows), one.out, {1, size.rows})) << "token " << m;
    EXPECT_EQ(all.exponents[static_cast<std::size_t>(m)], one.exponents[0]);
  }
}

}  // namespace
}  // namespace fut::test
