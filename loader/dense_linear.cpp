// All the time goes into one block product, written with vector types and compiled twice, for the
// plain instruction set and for AVX2: the same operations on each element, so the same bits.
// Neither has fused multiply-add.
#include "loader/dense_linear.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace fut {
namespace {

constexpr int kLanes = 4;
typedef double Doubles __attribute__((vector_size(kLanes * 8)));
typedef double DoublesInMemory __attribute__((vector_size(kLanes * 8), aligned(8), may_alias));

// A tile of C stays in registers while k runs: 4 x 8 sums, of B two vectors, of A one.
constexpr std::int64_t kTileRows = 4;
constexpr std::int64_t kTileCols = 2 * kLanes;
// B is copied so that the loop over k reads it in order: 128 x 64 values, which fit in L2, a panel
// of 8 columns at a time in L1.
constexpr std::int64_t kPackedDepth = 128;
constexpr std::int64_t kPackedCols = 64;
// Rows and columns that one step of a factorisation takes, and of one thread's piece of a triangle.
constexpr std::int64_t kBlock = 128;

// Vector types never lie in memory: their alignment would be another one for each instruction set.
using PackedB = std::array<double, kPackedDepth * kPackedCols>;

// C tile += A tile * B panel, for full tiles. Written out, because sums that a loop indexes stay in
// memory at -O2.
__attribute__((always_inline)) inline void tile_body(double* c, std::int64_t c_stride,
                                                     const double* a, std::int64_t a_stride,
                                                     const double* b, std::int64_t depth) {
  DoublesInMemory* row0 = reinterpret_cast<DoublesInMemory*>(c);
  DoublesInMemory* row1 = reinterpret_cast<DoublesInMemory*>(c + c_stride);
  DoublesInMemory* row2 = reinterpret_cast<DoublesInMemory*>(c + 2 * c_stride);
  DoublesInMemory* row3 = reinterpret_cast<DoublesInMemory*>(c + 3 * c_stride);
  Doubles left0 = row0[0], left1 = row1[0], left2 = row2[0], left3 = row3[0];
  Doubles right0 = row0[1], right1 = row1[1], right2 = row2[1], right3 = row3[1];
  for (std::int64_t k = 0; k < depth; ++k) {
    const DoublesInMemory* values = reinterpret_cast<const DoublesInMemory*>(b + k * kTileCols);
    const Doubles left = values[0], right = values[1];
    const double a0 = a[k], a1 = a[a_stride + k], a2 = a[2 * a_stride + k];
    const double a3 = a[3 * a_stride + k];
    left0 += a0 * left;
    right0 += a0 * right;
    left1 += a1 * left;
    right1 += a1 * right;
    left2 += a2 * left;
    right2 += a2 * right;
    left3 += a3 * left;
    right3 += a3 * right;
  }
  row0[0] = left0;
  row0[1] = right0;
  row1[0] = left1;
  row1[1] = right1;
  row2[0] = left2;
  row2[1] = right2;
  row3[0] = left3;
  row3[1] = right3;
}

// The same where C ends earlier: element by element.
inline void edge_tile(MatrixView<double> c, MatrixView<const double> a, const double* b) {
  for (std::int64_t i = 0; i < c.rows; ++i) {
    for (std::int64_t j = 0; j < c.cols; ++j) {
      double sum = c.row(i)[j];
      for (std::int64_t k = 0; k < a.cols; ++k) sum += a.row(i)[k] * b[k * kTileCols + j];
      c.row(i)[j] = sum;
    }
  }
}

template <class T>
MatrixView<T> part(MatrixView<T> m, std::int64_t row, std::int64_t col, std::int64_t rows,
                   std::int64_t cols) {
  return {m.data + row * m.row_stride + col, rows, cols, m.row_stride};
}

// C += A * B for at most kPackedCols columns and kPackedDepth steps, B packed.
__attribute__((always_inline)) inline void block_body(MatrixView<double> c,
                                                      MatrixView<const double> a,
                                                      const PackedB& b) {
  for (std::int64_t j = 0; j < c.cols; j += kTileCols) {
    const double* panel = b.data() + j * a.cols;
    const std::int64_t cols = std::min(kTileCols, c.cols - j);
    for (std::int64_t i = 0; i < c.rows; i += kTileRows) {
      const std::int64_t rows = std::min(kTileRows, c.rows - i);
      if (rows == kTileRows && cols == kTileCols) {
        tile_body(c.row(i) + j, c.row_stride, a.row(i), a.row_stride, panel, a.cols);
      } else {
        edge_tile(part(c, i, j, rows, cols), part(a, i, 0, rows, a.cols), panel);
      }
    }
  }
}

// y += factor * x
__attribute__((always_inline)) inline void add_scaled_body(double* y, double factor,
                                                           const double* x, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    *reinterpret_cast<DoublesInMemory*>(y + i) +=
        factor * *reinterpret_cast<const DoublesInMemory*>(x + i);
  }
  for (; i < count; ++i) y[i] += factor * x[i];
}

struct Loops {
  void (*block)(MatrixView<double> c, MatrixView<const double> a, const PackedB& b);
  void (*add_scaled)(double* y, double factor, const double* x, std::int64_t count);
};

void block_plain(MatrixView<double> c, MatrixView<const double> a, const PackedB& b) {
  block_body(c, a, b);
}
void add_scaled_plain(double* y, double factor, const double* x, std::int64_t count) {
  add_scaled_body(y, factor, x, count);
}
constexpr Loops kPlainLoops = {&block_plain, &add_scaled_plain};

#if defined(__x86_64__)
__attribute__((target("avx2"))) void block_avx2(MatrixView<double> c, MatrixView<const double> a,
                                                const PackedB& b) {
  block_body(c, a, b);
}
__attribute__((target("avx2"))) void add_scaled_avx2(double* y, double factor, const double* x,
                                                     std::int64_t count) {
  add_scaled_body(y, factor, x, count);
}
constexpr Loops kAvx2Loops = {&block_avx2, &add_scaled_avx2};
#endif

const Loops& loops() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return kAvx2Loops;
#endif
  return kPlainLoops;
}

// Panels of 8 columns, each in the order of k; columns past the last are zero.
void pack(MatrixView<const double> b, PackedB& packed) {
  double* out = packed.data();
  for (std::int64_t j = 0; j < b.cols; j += kTileCols) {
    const std::int64_t cols = std::min(kTileCols, b.cols - j);
    for (std::int64_t k = 0; k < b.rows; ++k, out += kTileCols) {
      std::fill(std::copy_n(b.row(k) + j, cols, out), out + kTileCols, 0.0);
    }
  }
}

MatrixView<double> view(SquareMatrix& m) {
  return {m.values.data(), m.size, m.size, m.size};
}

struct Tile {
  std::int64_t row = 0, col = 0, rows = 0, cols = 0;
};

// Calls body(tile) for the tiles of kBlock x kBlock that cover rows and columns [begin, size) on
// and below the diagonal.
template <class Body>
void for_lower_tiles(std::int64_t begin, std::int64_t size, const ParallelFor& parallel_for,
                     const Body& body) {
  const std::int64_t per_side = (size - begin + kBlock - 1) / kBlock;
  run_parallel(parallel_for, per_side * (per_side + 1) / 2,
               [&](std::int64_t first, std::int64_t last) {
                 std::int64_t block_row = 0;
                 while ((block_row + 1) * (block_row + 2) / 2 <= first) ++block_row;
                 std::int64_t block_col = first - block_row * (block_row + 1) / 2;
                 for (std::int64_t t = first; t < last; ++t) {
                   const std::int64_t row = begin + block_row * kBlock;
                   const std::int64_t col = begin + block_col * kBlock;
                   body(Tile{row, col, std::min(kBlock, size - row), std::min(kBlock, size - col)});
                   if (++block_col > block_row) {
                     ++block_row;
                     block_col = 0;
                   }
                 }
               });
}

// Factors the block of rows and columns [begin, begin + count) alone.
std::optional<std::int64_t> factor_diagonal_block(SquareMatrix& a, std::int64_t begin,
                                                  std::int64_t count) {
  for (std::int64_t p = begin; p < begin + count; ++p) {
    const double pivot = a.row(p)[p];
    if (!(pivot > 0 && std::isfinite(pivot))) return p;
    a.row(p)[p] = std::sqrt(pivot);
    for (std::int64_t i = p + 1; i < begin + count; ++i) {
      a.row(i)[p] /= a.row(p)[p];
      for (std::int64_t j = p + 1; j <= i; ++j) a.row(i)[j] -= a.row(i)[p] * a.row(j)[p];
    }
  }
  return std::nullopt;
}

// Columns [begin, begin + count) of L for rows [row, row + rows) below their diagonal block, by
// substitution on the transposed panel. `negated` receives the same columns transposed and negated.
void solve_panel(SquareMatrix& a, std::int64_t begin, std::int64_t count, std::int64_t row,
                 std::int64_t rows, MatrixView<double> negated) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t p = 0; p < count; ++p) negated.row(p)[i] = -a.row(row + i)[begin + p];
  }
  for (std::int64_t p = 0; p < count; ++p) {
    const double* factors = a.row(begin + p) + begin;
    for (std::int64_t q = 0; q < p; ++q) {
      add_scaled(negated.row(p), -factors[q], negated.row(q), rows);
    }
    for (std::int64_t i = 0; i < rows; ++i) negated.row(p)[i] /= factors[p];
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t p = 0; p < count; ++p) a.row(row + i)[begin + p] = -negated.row(p)[i];
  }
}

// Rows [begin, begin + count) and columns [col, col + cols) of the inverse, the rows above being
// done. `negated` holds those rows of -L up to the diagonal.
void invert_block(SquareMatrix& l, std::int64_t begin, std::int64_t count, std::int64_t col,
                  std::int64_t cols, MatrixView<const double> negated) {
  const MatrixView<double> out = part(view(l), begin, col, count, cols);
  const bool on_diagonal = col == begin;
  for (std::int64_t r = 0; r < count; ++r) {
    std::fill_n(out.row(r), cols, 0.0);
    if (on_diagonal) out.row(r)[r] = 1.0;
  }
  // Column c of the inverse is zero above row c.
  add_product(
      out, part(negated, 0, col, count, begin - col),
      part<const double>({l.values.data(), l.size, l.size, l.size}, col, col, begin - col, cols));
  for (std::int64_t r = 0; r < count; ++r) {
    const double* factors = negated.row(r) + begin;
    for (std::int64_t q = 0; q < r; ++q) add_scaled(out.row(r), factors[q], out.row(q), cols);
    for (std::int64_t c = 0; c < cols; ++c) out.row(r)[c] /= -factors[r];
  }
}

}  // namespace

void add_scaled(double* y, double factor, const double* x, std::int64_t count) {
  loops().add_scaled(y, factor, x, count);
}

void add_product(MatrixView<double> c, MatrixView<const double> a, MatrixView<const double> b) {
  FUT_CHECK(a.rows == c.rows && a.cols == b.rows && b.cols == c.cols,
            "product of {} x {} and {} x {} into {} x {}", a.rows, a.cols, b.rows, b.cols, c.rows,
            c.cols);
  const auto& block = loops().block;
  PackedB packed;
  for (std::int64_t j = 0; j < c.cols; j += kPackedCols) {
    const std::int64_t cols = std::min(kPackedCols, c.cols - j);
    for (std::int64_t k = 0; k < b.rows; k += kPackedDepth) {
      const std::int64_t depth = std::min(kPackedDepth, b.rows - k);
      pack(part(b, k, j, depth, cols), packed);
      block(part(c, 0, j, c.rows, cols), part(a, 0, k, a.rows, depth), packed);
    }
  }
}

void accumulate_hessian(SquareMatrix& h, MatrixView<const float> x,
                        const ParallelFor& parallel_for) {
  FUT_CHECK(x.cols == h.size, "tokens of {} values for a Hessian of {}", x.cols, h.size);
  const std::int64_t n = h.size;
  const std::int64_t depth = std::min(kPackedDepth, x.rows);
  std::vector<double> by_token(static_cast<std::size_t>(depth * n));
  std::vector<double> by_column(static_cast<std::size_t>(depth * n));
  for (std::int64_t first = 0; first < x.rows; first += depth) {
    const std::int64_t tokens = std::min(depth, x.rows - first);
    run_parallel(parallel_for, n, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t c = begin; c < end; ++c) {
          const double value = x.row(first + t)[c];
          by_token[static_cast<std::size_t>(t * n + c)] = value;
          by_column[static_cast<std::size_t>(c * depth + t)] = value;
        }
      }
    });
    const MatrixView<const double> rows{by_token.data(), tokens, n, n};
    const MatrixView<const double> columns{by_column.data(), n, tokens, depth};
    for_lower_tiles(0, n, parallel_for, [&](const Tile& t) {
      add_product(part(view(h), t.row, t.col, t.rows, t.cols),
                  part(columns, t.row, 0, t.rows, tokens), part(rows, 0, t.col, tokens, t.cols));
    });
  }
}

void accumulate_products(SquareMatrix& g, MatrixView<const float> left,
                         MatrixView<const float> right, const ParallelFor& parallel_for) {
  FUT_CHECK(left.cols == g.size && right.cols == g.size && left.rows == right.rows,
            "{} x {} and {} x {} values for a matrix of {}", left.rows, left.cols, right.rows,
            right.cols, g.size);
  const std::int64_t n = g.size;
  const std::int64_t depth = std::min(kPackedDepth, left.rows);
  std::vector<double> by_token(static_cast<std::size_t>(depth * n));
  std::vector<double> by_column(static_cast<std::size_t>(depth * n));
  for (std::int64_t first = 0; first < left.rows; first += depth) {
    const std::int64_t tokens = std::min(depth, left.rows - first);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t c = 0; c < n; ++c) {
        by_token[static_cast<std::size_t>(t * n + c)] = right.row(first + t)[c];
        by_column[static_cast<std::size_t>(c * depth + t)] = left.row(first + t)[c];
      }
    }
    run_parallel(parallel_for, (n + kBlock - 1) / kBlock,
                 [&](std::int64_t begin, std::int64_t end) {
                   const std::int64_t row = begin * kBlock;
                   const std::int64_t rows = std::min(end * kBlock, n) - row;
                   add_product({g.row(row), rows, n, n},
                               {by_column.data() + row * depth, rows, tokens, depth},
                               {by_token.data(), tokens, n, n});
                 });
  }
}

void mirror_lower(SquareMatrix& h) {
  for (std::int64_t i = 0; i < h.size; ++i) {
    for (std::int64_t j = 0; j < i; ++j) h.row(j)[i] = h.row(i)[j];
  }
}

std::optional<std::int64_t> cholesky_lower(SquareMatrix& a, const ParallelFor& parallel_for) {
  const std::int64_t n = a.size;
  std::vector<double> buffer(static_cast<std::size_t>(kBlock * n));
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, n - begin);
    if (const auto pivot = factor_diagonal_block(a, begin, count)) return pivot;
    const std::int64_t below = begin + count;
    const MatrixView<double> negated{buffer.data(), count, n, n};
    run_parallel(parallel_for, (n - below + kBlock - 1) / kBlock,
                 [&](std::int64_t first, std::int64_t last) {
                   for (std::int64_t chunk = first; chunk < last; ++chunk) {
                     const std::int64_t row = below + chunk * kBlock;
                     const std::int64_t rows = std::min(kBlock, n - row);
                     solve_panel(a, begin, count, row, rows, part(negated, 0, row, count, rows));
                   }
                 });
    for_lower_tiles(below, n, parallel_for, [&](const Tile& t) {
      const MatrixView<double> whole = view(a);
      add_product(part(whole, t.row, t.col, t.rows, t.cols),
                  part<const double>({a.values.data(), n, n, n}, t.row, begin, t.rows, count),
                  part<const double>({buffer.data(), count, n, n}, 0, t.col, count, t.cols));
    });
  }
  for (std::int64_t i = 0; i < n; ++i) std::fill(a.row(i) + i + 1, a.row(i) + n, 0.0);
  return std::nullopt;
}

void invert_lower(SquareMatrix& l, const ParallelFor& parallel_for) {
  const std::int64_t n = l.size;
  std::vector<double> buffer(static_cast<std::size_t>(kBlock * n));
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, n - begin);
    for (std::int64_t r = 0; r < count; ++r) {
      std::transform(l.row(begin + r), l.row(begin + r) + begin + count, buffer.data() + r * n,
                     [](double value) { return -value; });
    }
    const MatrixView<const double> negated{buffer.data(), count, n, n};
    const std::int64_t num_chunks = begin / kBlock + 1;
    run_parallel(parallel_for, num_chunks, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) {
        // The left chunks are the longest sums: taken from both ends, so that pieces weigh the
        // same.
        const std::int64_t chunk = t % 2 == 0 ? t / 2 : num_chunks - 1 - t / 2;
        const std::int64_t col = chunk * kBlock;
        invert_block(l, begin, count, col, col == begin ? count : kBlock, negated);
      }
    });
  }
}

std::optional<std::int64_t> inverse_upper_factor(SquareMatrix& h, const ParallelFor& parallel_for) {
  // Reversing both indices of a square row-major matrix is reversing the whole array.
  std::reverse(h.values.begin(), h.values.end());
  if (const auto pivot = cholesky_lower(h, parallel_for)) return h.size - 1 - *pivot;
  invert_lower(h, parallel_for);
  std::reverse(h.values.begin(), h.values.end());
  return std::nullopt;
}

}  // namespace fut
