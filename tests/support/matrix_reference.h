// What the contract of the matrix ops (ops.h) makes of one row, in its own words and step by step:
// the same bits as a backend that keeps the order of additions. Also rows whose norm is exact.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/dot.h"
#include "tests/support/compare.h"

namespace fut::test {

// M tokens, N outputs, K inputs.
struct Size {
  std::int64_t tokens = 0, rows = 0, cols = 0;
};

template <class T>
[[nodiscard]] std::span<const T> row_of(const std::vector<T>& values, std::int64_t row,
                                        std::int64_t cols) {
  return std::span(values).subspan(static_cast<std::size_t>(row * cols),
                                   static_cast<std::size_t>(cols));
}

[[nodiscard]] inline std::vector<Bounded> bounded(std::span<const float> values) {
  return {values.begin(), values.end()};
}

[[nodiscard]] float dot_of(std::span<const float> a, std::span<const float> b);

// r = 1 / sqrt(dot(x, x) / K + eps), and in Bounded numbers.
[[nodiscard]] float inverse_rms(std::span<const float> x, float eps);
[[nodiscard]] Bounded bounded_inverse_rms(std::span<const float> x, float eps);
// (x * r) * gain
[[nodiscard]] std::vector<Bounded> bounded_normed_row(std::span<const float> x,
                                                      std::span<const float> gain, float eps);

// T((x * r) * scale) for normalised operands of 16 or 8 bits; T(x) for raw ones.
[[nodiscard]] std::vector<float> normed_operand(DType dtype, std::span<const float> x, float eps,
                                                float scale = 1);
[[nodiscard]] std::vector<float> rounded_row(DType dtype, std::span<const float> x);

// Rows of integers, -15 .. 15, whose mean square is exactly 64: r is exactly 1/8 where eps is 0.
[[nodiscard]] std::vector<float> unit_rms_integers(std::int64_t rows, std::int64_t cols,
                                                   std::uint32_t seed);

// silu(gate) * up with the exponential of the CPU backend, whose bits no library has to give.
[[nodiscard]] float silu_product(float gate, float up);
[[nodiscard]] Bounded silu_product(const Bounded& gate, const Bounded& up);

}  // namespace fut::test
