// Forward error analysis of the few operations that the ops are made of, and the two comparers.
#include "tests/support/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <functional>

namespace fut::test {
namespace {

// The result of one float32 operation whose exact operands would give `value`, while the real ones
// give something up to `error` away from it. Below the normal range the rounding is absolute.
Bounded rounded(double value, double error) {
  constexpr double kHalfSmallestSubnormal = 0x1p-150;
  return {value, error + kUnitRoundoff * (std::fabs(value) + error) + kHalfSmallestSubnormal};
}

// n roundings in a row: n * u / (1 - n * u).
double gamma(int n) {
  return n * kUnitRoundoff / (1.0 - n * kUnitRoundoff);
}

std::string coordinates(std::size_t i, Shape shape) {
  const auto index = static_cast<std::int64_t>(i);
  return fmt::format("[{}, {}]", index / shape.cols, index % shape.cols);
}

// Counts the elements that `is_wrong` names and describes the first.
testing::AssertionResult report(std::size_t expected_size, std::size_t actual_size, Shape shape,
                                const std::function<bool(std::size_t)>& is_wrong,
                                const std::function<std::string(std::size_t)>& describe) {
  const auto elements = static_cast<std::size_t>(shape.rows * shape.cols);
  if (expected_size != elements || actual_size != elements) {
    return testing::AssertionFailure()
           << fmt::format("{} expected and {} actual values for [{}, {}]", expected_size,
                          actual_size, shape.rows, shape.cols);
  }
  std::size_t num_wrong = 0;
  std::string first;
  for (std::size_t i = 0; i < elements; ++i) {
    if (!is_wrong(i)) continue;
    if (num_wrong++ == 0) first = coordinates(i, shape) + ": " + describe(i);
  }
  if (num_wrong == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << fmt::format("{} of {} elements wrong, the first at {}", num_wrong, elements, first);
}

}  // namespace

Bounded operator+(const Bounded& a, const Bounded& b) {
  return rounded(a.value + b.value, a.error + b.error);
}

Bounded operator-(const Bounded& a, const Bounded& b) {
  return rounded(a.value - b.value, a.error + b.error);
}

Bounded operator*(const Bounded& a, const Bounded& b) {
  return rounded(a.value * b.value,
                 std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + a.error * b.error);
}

Bounded operator/(const Bounded& a, const Bounded& b) {
  const double quotient = a.value / b.value;
  const double least_divisor = std::fabs(b.value) - b.error;
  return rounded(quotient, (a.error + std::fabs(quotient) * b.error) / least_divisor);
}

Bounded sqrt(const Bounded& a) {
  const double root = std::sqrt(a.value);
  return rounded(root, root - std::sqrt(a.value - a.error));
}

Bounded exp(const Bounded& a) {
  const double value = std::exp(a.value);
  const Bounded once = rounded(value, value * std::expm1(a.error));
  return {value, once.error + kUnitRoundoff * value};  // within one unit, not half of one
}

Bounded rounded_to(DType dtype, const Bounded& a) {
  // Significant bits, and half the step of subnormals.
  struct Format {
    double unit_roundoff, half_smallest;
  };
  const Format format = dtype == DType::BF16   ? Format{0x1p-8, 0x1p-134}
                        : dtype == DType::F16  ? Format{0x1p-11, 0x1p-25}
                        : dtype == DType::E4M3 ? Format{0x1p-4, 0x1p-10}
                                               : Format{0, 0};
  const double size = std::fabs(a.value) + a.error;
  return {a.value, a.error + std::max(format.unit_roundoff * size, format.half_smallest)};
}

Bounded dot(std::span<const Bounded> a, std::span<const Bounded> b, int roundings) {
  double sum = 0;
  double carried = 0;
  double magnitude = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    sum += a[k].value * b[k].value;
    const double own = std::fabs(a[k].value) * b[k].error + std::fabs(b[k].value) * a[k].error +
                       a[k].error * b[k].error;
    carried += own;
    magnitude += std::fabs(a[k].value * b[k].value) + own;
  }
  return {sum, carried + gamma(roundings) * magnitude};
}

Bounded contract_dot(std::span<const Bounded> a, std::span<const Bounded> b) {
  return dot(a, b, static_cast<int>((a.size() + 15) / 16) + 4 + 1);
}

testing::AssertionResult same_bits(std::span<const float> expected, std::span<const float> actual,
                                   Shape shape) {
  const auto bits = [](float v) { return std::bit_cast<std::uint32_t>(v); };
  return report(
      expected.size(), actual.size(), shape,
      [&](std::size_t i) {
        if (std::isnan(expected[i]) && std::isnan(actual[i])) return false;
        return bits(expected[i]) != bits(actual[i]);
      },
      [&](std::size_t i) {
        return fmt::format("expected {} (0x{:08X}), got {} (0x{:08X})", expected[i],
                           bits(expected[i]), actual[i], bits(actual[i]));
      });
}

testing::AssertionResult within_bounds(std::span<const Bounded> expected,
                                       std::span<const float> actual, Shape shape) {
  const auto distance = [&](std::size_t i) {
    return std::fabs(static_cast<double>(actual[i]) - expected[i].value);
  };
  return report(
      expected.size(), actual.size(), shape,
      // Written so that a NaN on either side, and a bound that is none, are wrong.
      [&](std::size_t i) {
        return !(distance(i) <= expected[i].error) || !std::isfinite(expected[i].error);
      },
      [&](std::size_t i) {
        return fmt::format("expected {} within {}, got {}, off by {}", expected[i].value,
                           expected[i].error, actual[i], distance(i));
      });
}

}  // namespace fut::test
