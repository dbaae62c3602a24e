// The small matrices are computed, not listed; everything larger is a Kronecker product that is
// never formed. Random numbers come from Philox, so that no state and no library decides them.
#include "loader/hadamard.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/check.h"
#include "kernels/numeric/philox.h"
#include "loader/dense_linear.h"

namespace fut {
namespace {

constexpr std::array<int, 4> kSmallOrders = {1, 12, 20, 28};

bool is_power_of_two(std::int64_t value) {
  return value > 0 && (value & (value - 1)) == 0;
}

// The order of the Hadamard matrix that leaves a power of two; 0 where none does.
int small_order(std::int64_t size) {
  for (const int order : kSmallOrders) {
    if (size % order == 0 && is_power_of_two(size / order)) return order;
  }
  return 0;
}

// +1 for squares, -1 for the others, 0 for multiples of the prime.
int quadratic_character(int value, int prime) {
  const int residue = (value % prime + prime) % prime;
  if (residue == 0) return 0;
  for (int root = 1; root < prime; ++root) {
    if (root * root % prime == residue) return 1;
  }
  return -1;
}

// Paley's core bordered by ones, as a matrix of order prime + 1 with zero diagonal:
// C C^T = prime * I. Skew where prime = 3 mod 4, symmetric where prime = 1 mod 4.
std::vector<int> conference_matrix(int prime) {
  const int n = prime + 1;
  std::vector<int> c(static_cast<std::size_t>(n * n));
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      int& entry = c[static_cast<std::size_t>(i * n + j)];
      if (i == j) {
        entry = 0;
      } else if (i == 0) {
        entry = 1;
      } else if (j == 0) {
        entry = prime % 4 == 3 ? -1 : 1;
      } else {
        entry = quadratic_character(i - j, prime);
      }
    }
  }
  return c;
}

// Random words that depend on seed and stream alone.
std::array<std::uint32_t, 4> random_words(std::uint64_t seed, std::uint32_t stream,
                                          std::uint64_t index) {
  return philox4x32_10(
      {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), stream, 0},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}
constexpr std::uint32_t kSignStream = 1;
constexpr std::uint32_t kVectorStream = 2;

double random_sign(std::uint64_t seed, std::int64_t index) {
  return (random_words(seed, kSignStream, static_cast<std::uint64_t>(index))[0] >> 31) != 0 ? -1.0
                                                                                            : 1.0;
}

// Twelve uniform numbers summed: near enough to Gaussian, and free of a mathematical library whose
// last bit differs from machine to machine.
double random_normal(std::uint64_t seed, std::int64_t index) {
  double sum = -6.0;
  for (std::uint64_t part = 0; part < 3; ++part) {
    for (const std::uint32_t word :
         random_words(seed, kVectorStream, 3 * static_cast<std::uint64_t>(index) + part)) {
      sum += word * 0x1p-32;
    }
  }
  return sum;
}

double dot(const double* a, const double* b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// R = signs * reflection of the last two coordinates * of the last three * ... * of all.
std::vector<double> random_orthogonal(std::int64_t size, std::uint64_t seed) {
  std::vector<double> r(static_cast<std::size_t>(size * size));
  std::vector<double> v(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) {
    r[static_cast<std::size_t>(i * size + i)] = random_sign(seed, i);
  }
  for (std::int64_t length = 2; length <= size; ++length) {
    const std::int64_t first = size - length;
    for (std::int64_t i = 0; i < length; ++i) {
      v[static_cast<std::size_t>(i)] = random_normal(seed, length * size + i);
    }
    // The reflection that carries v to the first axis is along v + |v| * axis.
    const double norm = std::sqrt(dot(v.data(), v.data(), length));
    v[0] += v[0] < 0 ? -norm : norm;
    const double factor = 2.0 / dot(v.data(), v.data(), length);
    // Rows above `first` are still zero in these columns.
    for (std::int64_t row = first; row < size; ++row) {
      double* part = r.data() + row * size + first;
      add_scaled(part, -factor * dot(part, v.data(), length), v.data(), length);
    }
  }
  return r;
}

// x <- x H for Sylvester's H of size 2^k.
void walsh_hadamard(double* x, std::int64_t size) {
  for (std::int64_t half = 1; half < size; half *= 2) {
    for (std::int64_t begin = 0; begin < size; begin += 2 * half) {
      for (std::int64_t i = begin; i < begin + half; ++i) {
        const double sum = x[i] + x[i + half];
        x[i + half] = x[i] - x[i + half];
        x[i] = sum;
      }
    }
  }
}

}  // namespace

std::vector<std::int8_t> small_hadamard(int order) {
  FUT_CHECK(std::ranges::find(kSmallOrders, order) != kSmallOrders.end(),
            "no Hadamard matrix of order {}", order);
  std::vector<std::int8_t> h(static_cast<std::size_t>(order * order), std::int8_t{1});
  if (order == 1) return h;
  // Paley I: the order is a prime = 3 mod 4 and one: C + I.
  // Paley II: half the order is a prime = 1 mod 4 and one: each entry of C becomes a block of
  // 2 x 2: entry * [1 1; 1 -1], on the diagonal [1 -1; -1 -1].
  const bool second = order == 28;
  const int block = second ? 2 : 1;
  const int n = order / block;
  const std::vector<int> c = conference_matrix(n - 1);
  for (int i = 0; i < order; ++i) {
    for (int j = 0; j < order; ++j) {
      const int entry = c[static_cast<std::size_t>(i / block * n + j / block)];
      const bool low = second && i % 2 == 1, right = second && j % 2 == 1;
      int value = 1;
      if (entry != 0) {
        value = low && right ? -entry : entry;
      } else if (low || right) {
        value = -1;
      }
      h[static_cast<std::size_t>(i * order + j)] = static_cast<std::int8_t>(value);
    }
  }
  return h;
}

Rotation::Rotation(std::int64_t size, std::uint64_t seed) : size_(size) {
  FUT_CHECK(size > 0, "rotation of size {}", size);
  order_ = small_order(size);
  is_hadamard_ = order_ != 0;
  if (is_hadamard_) {
    const std::vector<std::int8_t> entries = small_hadamard(static_cast<int>(order_));
    small_.assign(entries.begin(), entries.end());
  } else {
    order_ = size;
    while (order_ % 2 == 0) order_ /= 2;
    small_ = random_orthogonal(order_, seed);
  }
  // The squared length of a row of the unscaled product.
  const std::int64_t squared_length = is_hadamard_ ? size : size / order_;
  const double scale = 1.0 / std::sqrt(static_cast<double>(squared_length));
  for (std::int64_t i = 0; i < size; ++i) signs_.push_back(random_sign(seed, i) * scale);
}

void Rotation::apply(MatrixView<double> rows) const {
  FUT_CHECK(rows.cols == size_ && rows.row_stride == size_, "rows of {} for a rotation of {}",
            rows.cols, size_);
  const std::int64_t block = size_ / order_;
  std::vector<double> copy(static_cast<std::size_t>(size_));
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    double* x = rows.row(r);
    for (std::int64_t i = 0; i < size_; ++i) x[i] *= signs_[static_cast<std::size_t>(i)];
    for (std::int64_t b = 0; b < size_; b += block) walsh_hadamard(x + b, block);
    if (order_ == 1) continue;
    std::copy_n(x, size_, copy.data());
    std::fill_n(x, size_, 0.0);
    add_product({x, order_, block, block}, {small_.data(), order_, order_, order_},
                {copy.data(), order_, block, block});
  }
}

}  // namespace fut
