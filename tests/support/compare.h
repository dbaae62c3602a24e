// How tests compare float32 results: bit by bit, or within a bound that is derived from the
// arithmetic itself. No tolerance is ever typed in.
//
// A bound comes from writing the reference in Bounded numbers: the value in float64, and beside it
// how far a float32 computation of the same steps can be off at most. Every operation adds what its
// inputs carry and one rounding of its own, so the bound grows with the steps and the magnitudes.
#pragma once

#include <gtest/gtest.h>
#include <span>
#include <vector>

#include "kernels/tensor.h"

namespace fut::test {

// Half the distance from 1 to the next float32: the largest relative error of one rounding.
inline constexpr double kUnitRoundoff = 0x1p-24;

struct Bounded {
  double value = 0;
  double error = 0;

  Bounded() = default;
  // A float32 that is given, not computed.
  Bounded(float exact) : value(exact) {}
  Bounded(double v, double e) : value(v), error(e) {}
};

[[nodiscard]] Bounded operator+(const Bounded& a, const Bounded& b);
[[nodiscard]] Bounded operator-(const Bounded& a, const Bounded& b);
[[nodiscard]] Bounded operator*(const Bounded& a, const Bounded& b);
[[nodiscard]] Bounded operator/(const Bounded& a, const Bounded& b);
[[nodiscard]] Bounded sqrt(const Bounded& a);
[[nodiscard]] Bounded exp(const Bounded& a);  // of a library that is right within one unit

// Rounded to a narrower type, within its range: at most half a step of that type is added.
[[nodiscard]] Bounded rounded_to(DType dtype, const Bounded& a);

// Any order of additions in which a term passes at most `roundings` of them, its product included.
[[nodiscard]] Bounded dot(std::span<const Bounded> a, std::span<const Bounded> b, int roundings);
// The contract's order: ceil(n / 16) additions in a partial sum, four in pairs, one product.
[[nodiscard]] Bounded contract_dot(std::span<const Bounded> a, std::span<const Bounded> b);

// Row-major values of a matrix without gaps.
struct Shape {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// Equal bits, signs of zeros included; any two NaN count as equal. The failure names the first
// wrong element and the number of wrong ones.
[[nodiscard]] testing::AssertionResult same_bits(std::span<const float> expected,
                                                 std::span<const float> actual, Shape shape);

// |actual - expected.value| <= expected.error for each element. A NaN or an infinity is outside.
[[nodiscard]] testing::AssertionResult within_bounds(std::span<const Bounded> expected,
                                                     std::span<const float> actual, Shape shape);

}  // namespace fut::test
