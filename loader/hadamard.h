// Orthogonal matrices that spread outliers over all channels: a randomised Hadamard where the size
// has one, else a random rotation. In float64. How they are folded into weights is transforms.h.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/tensor.h"

namespace fut {

// Entries +-1 of a Hadamard matrix, row-major: H H^T = order * I. Orders 1, 12, 20 and 28, by
// Paley's constructions from the quadratic residues of 11, 19 and 13.
[[nodiscard]] std::vector<std::int8_t> small_hadamard(int order);

// An orthogonal R of the given size, a function of size and seed alone, with the same bits on every
// machine: R = S (A x H_2^k) / sqrt(2^k), a Kronecker product behind random signs S, H Sylvester's
// matrix and A of order m = size / 2^k
//   a Hadamard matrix (over sqrt(m)) where m can be 1, 12, 20 or 28
//   else a random orthogonal matrix, m being the odd part of size: Householder reflections of
//   random vectors, as QR of a Gaussian matrix gives (Stewart 1980)
class Rotation {
 public:
  Rotation(std::int64_t size, std::uint64_t seed);

  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] bool is_hadamard() const { return is_hadamard_; }

  // x <- x R for each row of size() numbers, in size * (m + k) steps. Rows lie end to end.
  void apply(MatrixView<double> rows) const;

 private:
  std::int64_t size_;
  std::int64_t order_ = 0;  // m
  bool is_hadamard_ = false;
  std::vector<double> small_;  // the transposed A, [m, m]
  std::vector<double> signs_;  // of S, times what makes R orthonormal
};

}  // namespace fut
