// A slab of rows goes through everything at once: its scales, the column sweep, the descent, and
// the comparison with round-to-nearest. Slabs share nothing, so threads take slabs.
#include "loader/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "loader/int4_grid.h"

namespace fut {
namespace {

constexpr int kMaxDampingRaises = 2;
constexpr double kDampingRaise = 10;
// Rows that one thread takes at a time: enough to pay for a pass over H and U.
constexpr std::int64_t kSlabRows = 64;

struct Problem {
  const HostMatrix& w;  // dead columns are zero
  const SquareMatrix& h;
  const GptqFactor& factor;
  const GptqOptions& options;
  std::vector<float> importance;  // the diagonal of H over its mean
  double ridge = 0;               // what damping adds to each element of the diagonal
};

// A matrix of float64 that owns its memory.
struct Buffer {
  std::vector<double> values;
  MatrixView<double> view;

  Buffer(std::int64_t rows, std::int64_t cols)
      : values(static_cast<std::size_t>(rows * cols)), view{values.data(), rows, cols, cols} {}
  [[nodiscard]] MatrixView<const double> read(std::int64_t rows, std::int64_t cols) const {
    return {values.data(), rows, cols, view.row_stride};
  }
};

double dot(const double* a, const double* b, std::int64_t count) {
  return std::inner_product(a, a + count, b, 0.0);
}

// A slab's codes and scales carry its own row numbers; row 0 is row `first` of the whole matrix.
std::span<std::int8_t> codes_of(QuantizedMatrix& slab, std::int64_t row) {
  return {slab.row(row), static_cast<std::size_t>(slab.cols)};
}
std::span<std::uint16_t> scales_of(QuantizedMatrix& slab, std::int64_t row) {
  return {slab.row_scales(row), static_cast<std::size_t>(slab.groups())};
}

Int4Scale scale_at(const QuantizedMatrix& q, std::int64_t row, std::int64_t col) {
  return {q.row_scales(row)[col / q.group_size]};
}

// ---- the sweep ------------------------------------------------------------------------------

// Columns order[begin .. end) of one row: codes, and -error / U_jj of each into `negated`, applied
// to the rest of these columns. Returns the sum of the squared errors.
double sweep_row_block(const Problem& p, std::int64_t begin, std::int64_t end, double* weights,
                       double* negated, QuantizedMatrix& slab, std::int64_t row) {
  double squares = 0;
  for (std::int64_t j = begin; j < end; ++j) {
    const std::int64_t col = p.factor.order[static_cast<std::size_t>(j)];
    const Int4Scale scale = scale_at(slab, row, col);
    const int code = encode_int4(weights[j], scale);
    slab.row(row)[col] = static_cast<std::int8_t>(code);
    const double* factors = p.factor.upper.row(j);
    const double error = (weights[j] - decode_int4(code, scale)) / factors[j];
    squares += error * error;
    negated[j - begin] = -error;
    add_scaled(weights + j + 1, -error, factors + j + 1, end - j - 1);
  }
  return squares;
}

// Writes the slab's codes, reads its scales. Returns the sum of squared errors of each row.
std::vector<double> sweep(const Problem& p, std::int64_t first, QuantizedMatrix& slab) {
  const std::int64_t n = slab.cols, rows = slab.rows;
  Buffer weights(rows, n), negated(rows, p.options.block_columns);
  std::vector<double> squares(static_cast<std::size_t>(rows));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < n; ++j) {
      weights.view.row(r)[j] = p.w.row(first + r)[p.factor.order[static_cast<std::size_t>(j)]];
    }
  }
  for (std::int64_t begin = 0; begin < n; begin += p.options.block_columns) {
    const std::int64_t end = std::min<std::int64_t>(begin + p.options.block_columns, n);
    for (std::int64_t r = 0; r < rows; ++r) {
      squares[static_cast<std::size_t>(r)] +=
          sweep_row_block(p, begin, end, weights.view.row(r), negated.view.row(r), slab, r);
    }
    if (end == n) break;
    add_product({weights.values.data() + end, rows, n - end, n}, negated.read(rows, end - begin),
                {p.factor.upper.row(begin) + end, end - begin, n - end, n});
  }
  return squares;
}

// ---- what codes cost ------------------------------------------------------------------------

// The residual d = w - q of each row of a slab, d H, and d H d.
struct Cost {
  Buffer residual, product;
  std::vector<double> losses;

  Cost(std::int64_t rows, std::int64_t cols)
      : residual(rows, cols), product(rows, cols), losses(static_cast<std::size_t>(rows)) {}

  void update_losses() {
    for (std::int64_t r = 0; r < residual.view.rows; ++r) {
      losses[static_cast<std::size_t>(r)] =
          dot(residual.view.row(r), product.view.row(r), residual.view.cols);
    }
  }
};

Cost cost_of(const Problem& p, std::int64_t first, const QuantizedMatrix& slab) {
  const std::int64_t n = slab.cols;
  Cost cost(slab.rows, n);
  for (std::int64_t r = 0; r < slab.rows; ++r) {
    for (std::int64_t c = 0; c < n; ++c) {
      cost.residual.view.row(r)[c] = static_cast<double>(p.w.row(first + r)[c]) -
                                     decode_int4(slab.row(r)[c], scale_at(slab, r, c));
    }
  }
  add_product(cost.product.view, cost.residual.read(slab.rows, n), {p.h.values.data(), n, n, n});
  cost.update_losses();
  return cost;
}

// ---- coordinate descent ---------------------------------------------------------------------

// One row on its way down. The objective has the damping that the sweep had.
struct Descent {
  const Problem& p;
  std::span<std::int8_t> codes;
  std::span<std::uint16_t> scales;
  double* residual;
  double* product;  // residual * H

  // Half the derivative along -residual[c].
  [[nodiscard]] double slope(std::int64_t c) const { return product[c] + p.ridge * residual[c]; }

  // residual[c] -= step; whether that lowers the loss is the caller's business.
  void move(std::int64_t c, double step) {
    residual[c] -= step;
    add_scaled(product, -step, p.h.row(c), p.h.size);
  }

  // Each code in turn: the optimum given all others, rounded to the grid, is the best code.
  void improve_codes() {
    for (std::int64_t c = 0; c < p.h.size; ++c) {
      const Int4Scale scale{scales[static_cast<std::size_t>(c / p.options.group_size)]};
      const double curvature = p.h.row(c)[c] + p.ridge;
      std::int8_t& code = codes[static_cast<std::size_t>(c)];
      const double value = decode_int4(code, scale);
      const int better = encode_int4(value + slope(c) / curvature, scale);
      const double step = decode_int4(better, scale) - value;
      if (!(step * (2 * slope(c) - step * curvature) > 0)) continue;
      code = static_cast<std::int8_t>(better);
      move(c, step);
    }
  }

  // Each scale in turn: the optimum for the codes as they are.
  void improve_scales() {
    const std::int64_t size = p.options.group_size;
    for (std::size_t g = 0; g < scales.size(); ++g) {
      const std::int64_t first = static_cast<std::int64_t>(g) * size;
      double along = 0, curvature = 0;
      for (std::int64_t i = first; i < first + size; ++i) {
        const double code = codes[static_cast<std::size_t>(i)];
        double sum = p.ridge * code;
        for (std::int64_t k = first; k < first + size; ++k) {
          sum += p.h.row(i)[k] * codes[static_cast<std::size_t>(k)];
        }
        along += code * slope(i);
        curvature += code * sum;
      }
      const Int4Scale old{scales[g]};
      const Int4Scale fitted =
          Int4Scale::nearest(static_cast<float>(old.value() + along / curvature));
      const double step = static_cast<double>(fitted.value()) - old.value();
      if (!std::isnormal(fitted.value()) || !(step * (2 * along - step * curvature) > 0)) continue;
      scales[g] = fitted.bf16;
      for (std::int64_t i = first; i < first + size; ++i) {
        move(i, step * codes[static_cast<std::size_t>(i)]);
      }
    }
  }
};

void descend(const Problem& p, QuantizedMatrix& slab, Cost& cost) {
  if (p.options.descent_rounds == 0) return;
  for (std::int64_t r = 0; r < slab.rows; ++r) {
    Descent row{p, codes_of(slab, r), scales_of(slab, r), cost.residual.view.row(r),
                cost.product.view.row(r)};
    for (int round = 0; round < p.options.descent_rounds; ++round) {
      row.improve_codes();
      row.improve_scales();
    }
    row.improve_codes();
  }
  cost.update_losses();
}

// ---- a slab ---------------------------------------------------------------------------------

struct RowReport {
  double loss = 0, rtn_loss = 0, energy = 0, swept_loss = 0;
  bool rounded = false;
};

// Rows [first, first + reports.size()) of the result.
void quantize_slab(const Problem& p, std::int64_t first, QuantizedMatrix& out,
                   std::span<RowReport> reports) {
  QuantizedMatrix slab(std::ssize(reports), p.w.cols, p.options.group_size);
  const Cost zero = cost_of(p, first, slab);  // all codes are zero as yet
  for (std::int64_t r = 0; r < slab.rows; ++r) {
    quantize_row(p.w, first + r, p.importance, p.options.group_size, ScaleRule::Searched,
                 codes_of(slab, r), scales_of(slab, r));
  }
  const Cost rtn = cost_of(p, first, slab);
  QuantizedMatrix swept = slab;
  std::vector<double> squares(reports.size());
  Cost descended = rtn;
  if (p.factor.usable) {
    squares = sweep(p, first, swept);
    descended = cost_of(p, first, swept);
    descend(p, swept, descended);
  }
  for (std::size_t r = 0; r < reports.size(); ++r) {
    const bool rounded = !(descended.losses[r] < rtn.losses[r]);
    reports[r] = {std::min(descended.losses[r], rtn.losses[r]), rtn.losses[r], zero.losses[r],
                  squares[r], rounded};
    const auto row = static_cast<std::int64_t>(r);
    QuantizedMatrix& better = rounded ? slab : swept;
    std::ranges::copy(codes_of(better, row), out.row(first + row));
    std::ranges::copy(scales_of(better, row), out.row_scales(first + row));
  }
}

// ---- the factor -----------------------------------------------------------------------------

void check_hessian(const std::string& input_name, const SquareMatrix& h) {
  for (std::int64_t i = 0; i < h.size; ++i) {
    for (std::int64_t j = 0; j < h.size; ++j) {
      if (!std::isfinite(h.row(i)[j]) || (i == j && h.row(i)[j] < 0)) {
        throw_bad_hessian(input_name, i, j, h.row(i)[j]);
      }
    }
  }
}

// The permuted Hessian with `ridge` on its diagonal; a dead column is independent of the others.
SquareMatrix permuted(const SquareMatrix& h, const std::vector<std::int64_t>& order, double ridge,
                      const ParallelFor& parallel_for) {
  SquareMatrix out(h.size);
  run_parallel(parallel_for, h.size, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const double* row = h.row(order[static_cast<std::size_t>(i)]);
      for (std::int64_t j = 0; j < h.size; ++j) {
        out.row(i)[j] = row[order[static_cast<std::size_t>(j)]];
      }
      if (out.row(i)[i] == 0) out.row(i)[i] = 1;
      out.row(i)[i] += ridge;
    }
  });
  return out;
}

}  // namespace

double mean_of(std::span<const double> diagonal) {
  return std::accumulate(diagonal.begin(), diagonal.end(), 0.0) /
         static_cast<double>(diagonal.size());
}

std::vector<float> column_importance(std::span<const double> diagonal) {
  const double mean = mean_of(diagonal);
  std::vector<float> importance;
  for (const double value : diagonal) importance.push_back(static_cast<float>(value / mean));
  return importance;
}

void throw_bad_hessian(const std::string& input_name, std::int64_t i, std::int64_t j,
                       double value) {
  throw data_error(
      "{}: the calibration statistics of inputs {} and {} sum to {}, which no activations give; "
      "check the checkpoint with --precision f32",
      input_name, i, j, value);
}

GptqFactor start_factor(const std::string& input_name, std::span<const double> diagonal,
                        const GptqOptions& options) {
  FUT_CHECK(options.damping > 0, "damping {}", options.damping);
  if (!(mean_of(diagonal) > 0)) {
    throw data_error(
        "{}: all {} inputs are zero on the whole calibration text; use another text (--calib)",
        input_name, diagonal.size());
  }
  GptqFactor factor;
  factor.order.resize(diagonal.size());
  std::iota(factor.order.begin(), factor.order.end(), 0);
  const auto at = [&](std::int64_t i) { return diagonal[static_cast<std::size_t>(i)]; };
  if (options.act_order) {
    std::ranges::stable_sort(factor.order,
                             [&](std::int64_t a, std::int64_t b) { return at(a) > at(b); });
  }
  for (std::int64_t i = 0; i < std::ssize(diagonal); ++i) {
    if (at(i) == 0) factor.dead_columns.push_back(i);
  }
  factor.damping = options.damping;
  return factor;
}

bool raise_damping(GptqFactor& factor) {
  factor.usable = factor.damping_raises < kMaxDampingRaises;
  if (!factor.usable) return false;
  factor.damping *= kDampingRaise;
  ++factor.damping_raises;
  return true;
}

GptqFactor factor_hessian(const std::string& input_name, const SquareMatrix& h,
                          const GptqOptions& options, const ParallelFor& parallel_for) {
  check_hessian(input_name, h);
  const std::vector<double> diagonal = diagonal_of(h);
  GptqFactor factor = start_factor(input_name, diagonal, options);
  do {
    factor.upper = permuted(h, factor.order, factor.damping * mean_of(diagonal), parallel_for);
    if (!inverse_upper_factor(factor.upper, parallel_for)) return factor;
  } while (raise_damping(factor));
  factor.upper = {};
  return factor;
}

GptqResult quantize_gptq(const HostMatrix& w, const SquareMatrix& h, const GptqFactor& factor,
                         const GptqOptions& options, const ParallelFor& parallel_for) {
  check_quantizable(w, options.group_size);
  FUT_CHECK(h.size == w.cols && std::ssize(factor.order) == w.cols,
            "Hessian of {} and order of {} for the {} columns of {}", h.size, factor.order.size(),
            w.cols, w.name);
  FUT_CHECK(options.block_columns > 0, "{} columns in a block", options.block_columns);
  HostMatrix live = w;
  for (const std::int64_t dead : factor.dead_columns) {
    for (std::int64_t r = 0; r < w.rows; ++r) live.row(r)[dead] = 0;
  }
  const std::vector<double> diagonal = diagonal_of(h);
  const Problem problem{
      live, h, factor, options, column_importance(diagonal), factor.damping * mean_of(diagonal)};
  GptqResult result{QuantizedMatrix(w.rows, w.cols, options.group_size), {}};
  std::vector<RowReport> rows(static_cast<std::size_t>(w.rows));
  const std::int64_t num_slabs = (w.rows + kSlabRows - 1) / kSlabRows;
  run_parallel(parallel_for, num_slabs, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t slab = begin; slab < end; ++slab) {
      const std::int64_t first = slab * kSlabRows;
      const std::int64_t count = std::min(kSlabRows, w.rows - first);
      quantize_slab(problem, first, result.matrix,
                    std::span(rows).subspan(static_cast<std::size_t>(first),
                                            static_cast<std::size_t>(count)));
    }
  });
  for (const RowReport& row : rows) {
    result.report.loss += row.loss;
    result.report.rtn_loss += row.rtn_loss;
    result.report.output_energy += row.energy;
    result.report.swept_loss += row.swept_loss;
    result.report.rows_rounded += row.rounded ? 1 : 0;
  }
  return result;
}

}  // namespace fut
