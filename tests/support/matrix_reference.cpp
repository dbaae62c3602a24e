// The contract of the matrix ops for one row at a time.
#include "tests/support/matrix_reference.h"

#include <cmath>
#include <random>

#include "kernels/cpu/vector_loops.h"
#include "tests/support/backends.h"

namespace fut::test {

float dot_of(std::span<const float> a, std::span<const float> b) {
  return cpu::dot(a.data(), b.data(), static_cast<std::int64_t>(a.size()));
}

float inverse_rms(std::span<const float> x, float eps) {
  return 1.0F / std::sqrt(dot_of(x, x) / static_cast<float>(x.size()) + eps);
}

Bounded bounded_inverse_rms(std::span<const float> x, float eps) {
  const std::vector<Bounded> row = bounded(x);
  const Bounded mean = contract_dot(row, row) / Bounded(static_cast<float>(x.size()));
  return Bounded(1.0F) / sqrt(mean + Bounded(eps));
}

std::vector<Bounded> bounded_normed_row(std::span<const float> x, std::span<const float> gain,
                                        float eps) {
  const Bounded r = bounded_inverse_rms(x, eps);
  std::vector<Bounded> result;
  for (std::size_t k = 0; k < x.size(); ++k) result.push_back(Bounded(x[k]) * r * Bounded(gain[k]));
  return result;
}

std::vector<float> normed_operand(DType dtype, std::span<const float> x, float eps, float scale) {
  const float r = inverse_rms(x, eps);
  std::vector<float> result;
  for (const float v : x) {
    const float normed = v * r;
    result.push_back(rounded_to(dtype, normed * scale));
  }
  return result;
}

std::vector<float> rounded_row(DType dtype, std::span<const float> x) {
  std::vector<float> result;
  for (const float v : x) result.push_back(rounded_to(dtype, v));
  return result;
}

std::vector<float> unit_rms_integers(std::int64_t rows, std::int64_t cols, std::uint32_t seed) {
  constexpr int kLargest = 15;
  std::mt19937 generator(seed);
  std::uniform_int_distribution<std::int64_t> any_column(0, cols - 1);
  std::vector<float> result;
  for (std::int64_t m = 0; m < rows; ++m) {
    std::vector<float> row = integer_values(cols, seed + static_cast<std::uint32_t>(m), kLargest);
    std::int64_t excess = -64 * cols;
    for (const float v : row) excess += static_cast<std::int64_t>(v * v);
    while (excess != 0) {
      float& v = row[static_cast<std::size_t>(any_column(generator))];
      const float size = std::fabs(v) + (excess > 0 ? -1.0F : 1.0F);
      if (size < 0 || size > kLargest) continue;
      excess += static_cast<std::int64_t>(size * size - v * v);
      v = std::copysign(size, v);
    }
    result.insert(result.end(), row.begin(), row.end());
  }
  return result;
}

float silu_product(float gate, float up) {
  float result = 0;
  cpu::usable_vector_loops().front()->swiglu(&gate, &up, 1, &result);
  return result;
}

Bounded silu_product(const Bounded& gate, const Bounded& up) {
  const Bounded silu = gate / (Bounded(1.0F) + exp(Bounded(-gate.value, gate.error)));
  return silu * up;
}

}  // namespace fut::test
