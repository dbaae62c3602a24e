// Contracts are in kernels/ops_gptq.h.
#include "tests/support/gptq_on_host.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/numeric/formats.h"
#include "loader/dense_linear.h"

namespace fut::test {
namespace {

constexpr std::int64_t kBlock = kGptqBlockColumns;

std::vector<float> widened(const ConstActivationView& x) {
  std::vector<float> values;
  for (std::int64_t t = 0; t < x.rows; ++t) {
    const auto* row = x.row<std::uint16_t>(t);
    std::transform(row, row + x.cols, std::back_inserter(values), bf16_to_f32);
  }
  return values;
}

Int4Scale scale_at(const Int4Rows& q, std::int64_t row, std::int64_t col) {
  return {q.scales[row * (q.cols / q.group_size) + col / q.group_size]};
}

// A block of one row on its way down, the product's block at hand.
struct BlockDescent {
  const DescendBlockArgs& a;
  std::int64_t row;
  std::vector<double> product;

  BlockDescent(const DescendBlockArgs& args, std::int64_t r)
      : a(args),
        row(r),
        product(args.product + r * args.q.cols + args.begin,
                args.product + r * args.q.cols + args.begin + kBlock) {
    std::fill_n(a.negated + row * kBlock, kBlock, 0.0);
  }

  [[nodiscard]] std::int8_t& code(std::int64_t c) {
    return a.q.codes[row * a.q.cols + a.begin + c];
  }
  [[nodiscard]] double& residual(std::int64_t c) {
    return a.residual[row * a.q.cols + a.begin + c];
  }
  [[nodiscard]] const double* h(std::int64_t c) const {
    return a.h + (a.begin + c) * a.q.cols + a.begin;
  }
  [[nodiscard]] double slope(std::int64_t c) {
    return product[static_cast<std::size_t>(c)] + a.ridge * residual(c);
  }

  void move(std::int64_t c, double step) {
    residual(c) -= step;
    a.negated[row * kBlock + c] = -step;
    add_scaled(product.data(), -step, h(c), kBlock);
  }

  void improve_codes() {
    for (std::int64_t c = 0; c < kBlock; ++c) {
      const Int4Scale scale = scale_at(a.q, row, a.begin + c);
      const double curvature = h(c)[c] + a.ridge;
      const double value = decode_int4(code(c), scale);
      const int better = encode_int4(value + slope(c) / curvature, scale);
      const double step = decode_int4(better, scale) - value;
      if (!(step * (2 * slope(c) - step * curvature) > 0)) continue;
      code(c) = static_cast<std::int8_t>(better);
      move(c, step);
    }
  }

  void improve_scales() {
    for (std::int64_t first = 0; first < kBlock; first += a.q.group_size) {
      double along = 0, curvature = 0;
      for (std::int64_t i = first; i < first + a.q.group_size; ++i) {
        double sum = a.ridge * code(i);
        for (std::int64_t k = first; k < first + a.q.group_size; ++k) sum += h(i)[k] * code(k);
        along += code(i) * slope(i);
        curvature += code(i) * sum;
      }
      std::uint16_t& stored = a.q.scales[(row * a.q.cols + a.begin + first) / a.q.group_size];
      const double old = Int4Scale{stored}.value();
      const Int4Scale fitted = Int4Scale::nearest(static_cast<float>(old + along / curvature));
      const double step = static_cast<double>(fitted.value()) - old;
      if (!std::isnormal(fitted.value()) || !(step * (2 * along - step * curvature) > 0)) continue;
      stored = fitted.bf16;
      for (std::int64_t i = first; i < first + a.q.group_size; ++i) move(i, step * code(i));
    }
  }
};

}  // namespace

void HostGptqOps::add_token_products(const TokenProductsArgs& a) {
  check(a);
  const std::vector<float> left = widened(a.left), right = widened(a.right);
  const std::int64_t n = a.left.cols, tokens = a.left.rows;
  SquareMatrix sums(n);
  accumulate_products(sums, {left.data(), tokens, n, n}, {right.data(), tokens, n, n}, {});
  for (std::size_t i = 0; i < sums.values.size(); ++i) {
    a.partial[i] = static_cast<float>(sums.values[i]);
    a.sums[i] = (a.adds ? a.sums[i] : 0) + a.partial[i];
  }
}

void HostGptqOps::finish_moments(const FinishMomentsArgs& a) {
  check(a);
  for (std::int64_t i = 0; i < a.n; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      const double value = a.h[i * a.n + j];
      a.h[j * a.n + i] = value;
      const auto place = static_cast<std::uint64_t>(i * a.n + j);
      if (!std::isfinite(value) || (i == j && value < 0)) {
        *a.first_bad = std::min(*a.first_bad, place);
      }
    }
    a.diagonal[i] = a.h[i * a.n + i];
  }
  for (std::int64_t i = 0; a.g != nullptr && i < a.n * a.n; ++i) a.g[i] -= a.h[i];
}

void HostGptqOps::inverse_factor(const InverseFactorArgs& a) {
  check(a);
  SquareMatrix m(a.n);
  for (std::int64_t i = 0; i < a.n; ++i) {
    for (std::int64_t j = 0; j < a.n; ++j) m.row(i)[j] = a.h[a.order[i] * a.n + a.order[j]];
    if (m.row(i)[i] == 0) m.row(i)[i] = 1;
    m.row(i)[i] += a.ridge;
  }
  *a.failed = inverse_upper_factor(m, {}).has_value() ? 1 : 0;
  std::ranges::copy(m.values, a.upper);
}

void HostGptqOps::add_product(const AddProductArgs& a) {
  check(a);
  MatrixView<const double> b = a.b;
  std::vector<double> turned;
  if (a.b_transposed) {
    for (std::int64_t k = 0; k < b.cols; ++k) {
      for (std::int64_t j = 0; j < b.rows; ++j) turned.push_back(b.row(j)[k]);
    }
    b = {turned.data(), a.b.cols, a.b.rows, a.b.rows};
  }
  for (std::int64_t r = 0; !a.adds && r < a.c.rows; ++r) std::fill_n(a.c.row(r), a.c.cols, 0.0);
  fut::add_product(a.c, a.a, b);
}

void HostGptqOps::gather_columns(const GatherColumnsArgs& a) {
  check(a);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t j = 0; j < a.cols; ++j) {
      const std::int64_t from = r * a.cols + (a.order == nullptr ? j : a.order[j]);
      a.out[r * a.cols + j] = a.wide == nullptr ? a.narrow[from] : a.wide[from];
    }
  }
}

void HostGptqOps::correct_rows(const CorrectRowsArgs& a) {
  check(a);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t j = 0; j < a.cols; ++j) {
      const std::int64_t c = r * a.cols + a.order[j];
      a.target[c] = a.w[c];
      if (a.correction != nullptr) {
        const double value = a.w[c];
        a.target[c] = static_cast<float>(value + a.share * a.correction[r * a.cols + j]);
      }
      if (a.diagonal[a.order[j]] == 0) a.target[c] = 0;
    }
  }
}

void HostGptqOps::residuals(const ResidualsArgs& a) {
  check(a);
  for (std::int64_t r = 0; r < a.q.rows; ++r) {
    for (std::int64_t c = 0; c < a.q.cols; ++c) {
      const std::int64_t i = r * a.q.cols + c;
      const double weight = a.w[i];
      a.out[i] = weight - decode_int4(a.q.codes[i], scale_at(a.q, r, c));
    }
  }
}

void HostGptqOps::row_dots(const RowDotsArgs& a) {
  check(a);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    const double* left = a.a + r * a.cols;
    a.out[r] = std::inner_product(left, left + a.cols, a.b + r * a.cols, 0.0);
  }
}

void HostGptqOps::sweep_block(const SweepBlockArgs& a) {
  check(a);
  for (std::int64_t r = 0; r < a.q.rows; ++r) {
    const double* from = a.weights + r * a.q.cols + a.begin;
    std::vector<double> weights(from, from + kBlock);
    for (std::int64_t j = 0; j < kBlock; ++j) {
      const std::int64_t col = a.order[a.begin + j];
      const Int4Scale scale = scale_at(a.q, r, col);
      double& weight = weights[static_cast<std::size_t>(j)];
      const int code = encode_int4(weight, scale);
      a.q.codes[r * a.q.cols + col] = static_cast<std::int8_t>(code);
      const double* factors = a.upper + (a.begin + j) * a.q.cols + a.begin + j;
      const double error = (weight - decode_int4(code, scale)) / factors[0];
      a.negated[r * kBlock + j] = -error;
      add_scaled(&weight + 1, -error, factors + 1, kBlock - j - 1);
    }
  }
}

void HostGptqOps::descend_block(const DescendBlockArgs& a) {
  check(a);
  for (std::int64_t r = 0; r < a.q.rows; ++r) {
    BlockDescent row(a, r);
    if (a.fits_scales) {
      row.improve_scales();
    } else {
      row.improve_codes();
    }
  }
}

void HostGptqOps::keep_better(const KeepBetterArgs& a) {
  check(a);
  const std::int64_t groups = a.q.cols / a.q.group_size;
  for (std::int64_t r = 0; r < a.q.rows; ++r) {
    if (a.losses[r] < a.rounded_losses[r]) continue;
    std::copy_n(a.rounded.codes + r * a.q.cols, a.q.cols, a.q.codes + r * a.q.cols);
    std::copy_n(a.rounded.scales + r * groups, groups, a.q.scales + r * groups);
  }
}

void HostGptqOps::dequantise(const DequantiseArgs& a) {
  check(a);
  for (std::int64_t r = 0; r < a.q.rows; ++r) {
    for (std::int64_t c = 0; c < a.q.cols; ++c) {
      const std::int64_t i = r * a.q.cols + c;
      a.out[i] = f32_to_bf16(decode_int4(a.q.codes[i], scale_at(a.q, r, c)));
    }
  }
}

}  // namespace fut::test
