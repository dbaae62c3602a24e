// GPTQ on inputs that are correlated as activations are: the identities that its algebra promises,
// never worse than round-to-nearest, and plain about what it had to give up.
#include "loader/gptq.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "loader/int4_grid.h"
#include "tests/support/expect_error.h"

namespace fut {
namespace {

constexpr std::int64_t kSize = 256;
constexpr std::int64_t kRows = 70;  // one slab and a bit

std::vector<double> gaussian(std::int64_t count, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = normal(engine);
  return values;
}

HostMatrix weights(std::int64_t rows = kRows) {
  HostMatrix w("layers.0.down_proj", rows, kSize);
  const std::vector<double> values = gaussian(rows * kSize, 1);
  std::ranges::transform(values, w.values.begin(), [](double v) { return static_cast<float>(v); });
  return w;
}

// Tokens whose spectrum falls as 1/k in a random basis, some channels ten times the others.
SquareMatrix correlated_hessian(std::uint32_t token_seed) {
  constexpr std::int64_t kTokens = 600;
  const std::vector<double> basis = gaussian(kSize * kSize, 2);
  std::vector<double> source = gaussian(kTokens * kSize, token_seed);
  for (std::int64_t i = 0; i < kTokens * kSize; ++i) {
    source[static_cast<std::size_t>(i)] /= std::sqrt(static_cast<double>(i % kSize + 1));
  }
  std::vector<double> mixed(source.size());
  add_product({mixed.data(), kTokens, kSize, kSize}, {source.data(), kTokens, kSize, kSize},
              {basis.data(), kSize, kSize, kSize});
  std::vector<float> x(mixed.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(mixed[i] * (i % kSize % 50 == 7 ? 10 : 1));
  }
  SquareMatrix h(kSize);
  accumulate_hessian(h, {x.data(), kTokens, kSize, kSize}, {});
  mirror_lower(h);
  return h;
}

SquareMatrix diagonal_hessian() {
  SquareMatrix h(kSize);
  for (std::int64_t i = 0; i < kSize; ++i) h.row(i)[i] = 1 + static_cast<double>((37 * i) % 101);
  return h;
}

GptqResult run(const HostMatrix& w, const SquareMatrix& h, const GptqOptions& options,
               const ParallelFor& parallel_for = {}) {
  return quantize_gptq(w, h, factor_hessian("layers.0.down_proj input", h, options, parallel_for),
                       options, parallel_for);
}

QuantizedMatrix round_to_nearest(const HostMatrix& w, const SquareMatrix& h, int group_size) {
  double mean = 0;
  for (std::int64_t i = 0; i < h.size; ++i) mean += h.row(i)[i] / static_cast<double>(h.size);
  std::vector<float> importance;
  for (std::int64_t i = 0; i < h.size; ++i) {
    importance.push_back(static_cast<float>(h.row(i)[i] / mean));
  }
  return quantize_rtn(w, importance, group_size, ScaleRule::Searched, {});
}

double ridge(const SquareMatrix& h, double damping) {
  double trace = 0;
  for (std::int64_t i = 0; i < h.size; ++i) trace += h.row(i)[i];
  return damping * trace / static_cast<double>(h.size);
}

// tr((W - Q) (H + ridge) (W - Q)^T) as it is written.
double loss(const HostMatrix& w, const QuantizedMatrix& q, const SquareMatrix& h,
            double added = 0) {
  const HostMatrix back = dequantize(q);
  double sum = 0;
  for (std::int64_t r = 0; r < w.rows; ++r) {
    std::vector<double> d;
    for (std::int64_t c = 0; c < w.cols; ++c) {
      d.push_back(static_cast<double>(w.row(r)[c]) - back.row(r)[c]);
    }
    for (std::size_t i = 0; i < d.size(); ++i) {
      const double* row = h.row(static_cast<std::int64_t>(i));
      sum += d[i] * (std::inner_product(d.begin(), d.end(), row, 0.0) + added * d[i]);
    }
  }
  return sum;
}

// Relative error of a quadratic form that goes through the factor: gamma(n) times the condition of
// H, which damping keeps below trace / ridge = n / damping.
double factor_bound(double damping) {
  constexpr double kGamma = static_cast<double>(kSize) * 0x1p-53;
  return kGamma * static_cast<double>(kSize) / damping;
}

void expect_same(const QuantizedMatrix& a, const QuantizedMatrix& b, std::string_view what) {
  EXPECT_EQ(a.codes, b.codes) << what;
  EXPECT_EQ(a.scales, b.scales) << what;
}

std::string message_of(const std::function<void()>& action) {
  return test::error_message(ErrorKind::Data, action);
}

// ---- identities ---------------------------------------------------------------------------------

TEST(Gptq, SweptErrorsSumToTheDampedLoss) {
  const HostMatrix w = weights();
  const SquareMatrix h = correlated_hessian(3);
  for (const bool act_order : {false, true}) {
    for (const int group_size : {64, 128}) {
      const GptqOptions options{
          .group_size = group_size, .act_order = act_order, .descent_rounds = 0};
      const GptqResult result = run(w, h, options);
      ASSERT_EQ(result.report.rows_rounded, 0);
      const double damped = loss(w, result.matrix, h, ridge(h, options.damping));
      EXPECT_NEAR(result.report.swept_loss, damped, factor_bound(options.damping) * damped);
    }
  }
}

TEST(Gptq, WithUncorrelatedInputsIsRoundToNearest) {
  const HostMatrix w = weights();
  const SquareMatrix h = diagonal_hessian();
  for (const bool act_order : {false, true}) {
    for (const int group_size : {64, 128}) {
      const GptqResult result =
          run(w, h, {.group_size = group_size, .act_order = act_order, .descent_rounds = 0});
      expect_same(result.matrix, round_to_nearest(w, h, group_size), "diagonal");
      EXPECT_EQ(result.report.loss, result.report.rtn_loss);
    }
  }
}

TEST(Gptq, BlocksChangeNotOneBit) {
  const HostMatrix w = weights();
  const SquareMatrix h = correlated_hessian(3);
  const GptqResult whole = run(w, h, {.block_columns = 1000});
  for (const int block : {1, 7, 64, 128}) {
    const GptqResult result = run(w, h, {.block_columns = block});
    expect_same(result.matrix, whole.matrix, std::to_string(block));
    EXPECT_EQ(result.report.loss, whole.report.loss);
  }
}

TEST(Gptq, OrderByEqualDiagonalsIsNoOrder) {
  const HostMatrix w = weights();
  SquareMatrix h = correlated_hessian(3);
  double top = 0;
  for (std::int64_t i = 0; i < kSize; ++i) top = std::max(top, h.row(i)[i]);
  for (std::int64_t i = 0; i < kSize; ++i) h.row(i)[i] = 2 * top;
  expect_same(run(w, h, {.act_order = true}).matrix, run(w, h, {.act_order = false}).matrix,
              "equal diagonals");
}

TEST(Gptq, TheOrderOfGroupsInMemoryDoesNotMatter) {
  // Both groups trade places, in W and on both sides of H: the sweep by falling diagonal meets the
  // same columns in the same order.
  const HostMatrix w = weights();
  const SquareMatrix h = correlated_hessian(3);
  HostMatrix swapped_w = w;
  SquareMatrix swapped_h = h;
  const auto other = [](std::int64_t c) { return (c + kSize / 2) % kSize; };
  for (std::int64_t c = 0; c < kSize; ++c) {
    for (std::int64_t r = 0; r < w.rows; ++r) swapped_w.row(r)[c] = w.row(r)[other(c)];
    for (std::int64_t r = 0; r < kSize; ++r) swapped_h.row(r)[c] = h.row(other(r))[other(c)];
  }
  const GptqOptions options{.descent_rounds = 0};
  const QuantizedMatrix plain = run(w, h, options).matrix;
  const QuantizedMatrix swapped = run(swapped_w, swapped_h, options).matrix;
  for (std::int64_t r = 0; r < w.rows; ++r) {
    EXPECT_EQ(plain.row_scales(r)[0], swapped.row_scales(r)[1]);
    for (std::int64_t c = 0; c < kSize; ++c) ASSERT_EQ(swapped.row(r)[c], plain.row(r)[other(c)]);
  }
}

TEST(Gptq, TheSameBitsHoweverTheWorkIsShared) {
  const ParallelFor two_threads = [](std::int64_t count, const auto& body) {
    std::thread last([&] { body(count / 3, count); });
    body(0, count / 3);
    last.join();
  };
  const HostMatrix w = weights();
  const SquareMatrix h = correlated_hessian(3);
  const GptqResult alone = run(w, h, {}), shared = run(w, h, {}, two_threads);
  expect_same(alone.matrix, shared.matrix, "threads");
  EXPECT_EQ(alone.report.loss, shared.report.loss);
}

// ---- what it is for -----------------------------------------------------------------------------

TEST(Gptq, LosesLessThanRoundToNearestOnSeenAndUnseenInputs) {
  const HostMatrix w = weights();
  const SquareMatrix seen = correlated_hessian(3), unseen = correlated_hessian(4);
  for (const bool act_order : {false, true}) {
    for (const int group_size : {64, 128}) {
      const GptqResult result = run(w, seen, {.group_size = group_size, .act_order = act_order});
      const QuantizedMatrix rounded = round_to_nearest(w, seen, group_size);
      EXPECT_LT(result.report.loss, result.report.rtn_loss);
      EXPECT_LT(loss(w, result.matrix, unseen), loss(w, rounded, unseen));
    }
  }
}

TEST(Gptq, IsNeverWorseThanRoundToNearestInAnyRow) {
  // One matrix after the other with a single row; damping so large that the sweep is led astray.
  const SquareMatrix h = correlated_hessian(3);
  const HostMatrix all = weights();
  for (std::int64_t r = 0; r < 20; ++r) {
    HostMatrix w("row", 1, kSize);
    std::copy_n(all.row(r), kSize, w.row(0));
    for (const double damping : {0.001, 10.0}) {
      const GptqResult result = run(w, h, {.damping = damping, .descent_rounds = 0});
      EXPECT_LE(result.report.loss, result.report.rtn_loss) << r;
    }
  }
}

TEST(Gptq, DescentLowersWhatTheSweepMinimised) {
  const HostMatrix w = weights();
  const SquareMatrix h = correlated_hessian(3);
  double previous = std::numeric_limits<double>::infinity();
  for (const int rounds : {0, 1, 2}) {
    const GptqResult result = run(w, h, {.descent_rounds = rounds});
    ASSERT_EQ(result.report.rows_rounded, 0);
    const double damped = loss(w, result.matrix, h, ridge(h, 0.01));
    EXPECT_LT(damped, previous) << rounds;
    previous = damped;
  }
}

TEST(Gptq, ReportsTheLossOfWhatItGives) {
  const HostMatrix w = weights();
  const SquareMatrix h = correlated_hessian(3);
  const GptqReport report = run(w, h, {}).report;
  const QuantizedMatrix q = run(w, h, {}).matrix;
  // Sums of kSize^2 products a row, in another order; descent follows d H through at most three
  // times as many updates as there are columns, and a scale touches as many again.
  const double gamma = static_cast<double>(kSize * 8) * 0x1p-53;
  QuantizedMatrix zero(w.rows, w.cols, 128);
  const double energy = loss(w, zero, h);
  EXPECT_NEAR(report.output_energy, energy, gamma * energy);
  EXPECT_NEAR(report.loss, loss(w, q, h), gamma * energy);
  const QuantizedMatrix rounded = round_to_nearest(w, h, 128);
  EXPECT_NEAR(report.rtn_loss, loss(w, rounded, h), gamma * energy);
}

// ---- what it gives up, visibly ------------------------------------------------------------------

TEST(Gptq, WeightsOfDeadInputsBecomeZero) {
  const HostMatrix w = weights();
  SquareMatrix h = correlated_hessian(3);
  for (const std::int64_t dead : {5, 200}) {
    for (std::int64_t i = 0; i < kSize; ++i) h.row(i)[dead] = h.row(dead)[i] = 0;
  }
  const GptqFactor factor = factor_hessian("x", h, {}, {});
  EXPECT_EQ(factor.dead_columns, (std::vector<std::int64_t>{5, 200}));
  EXPECT_EQ(factor.damping_raises, 0);
  const GptqResult result = quantize_gptq(w, h, factor, {}, {});
  HostMatrix without = w;
  for (std::int64_t r = 0; r < w.rows; ++r) {
    EXPECT_EQ(result.matrix.row(r)[5], 0);
    EXPECT_EQ(result.matrix.row(r)[200], 0);
    without.row(r)[5] = without.row(r)[200] = 0;
  }
  expect_same(result.matrix, quantize_gptq(without, h, factor, {}, {}).matrix, "zero before");
}

TEST(Gptq, RaisesTheDampingWhenItMustAndSaysSo) {
  // Two columns whose product is 5 % too large for any activations.
  SquareMatrix h = diagonal_hessian();
  for (std::int64_t i = 0; i < kSize; ++i) h.row(i)[i] = 1;
  h.row(3)[9] = h.row(9)[3] = 1.05;
  const GptqFactor factor = factor_hessian("x", h, {}, {});
  EXPECT_TRUE(factor.usable);
  EXPECT_EQ(factor.damping_raises, 1);
  EXPECT_DOUBLE_EQ(factor.damping, 0.1);
  const GptqResult result = quantize_gptq(weights(), h, factor, {}, {});
  EXPECT_LE(result.report.loss, result.report.rtn_loss);
}

TEST(Gptq, FallsBackToRoundToNearestAndSaysSo) {
  SquareMatrix h = diagonal_hessian();
  h.row(3)[9] = h.row(9)[3] = 1e6;
  const GptqFactor factor = factor_hessian("x", h, {}, {});
  EXPECT_FALSE(factor.usable);
  EXPECT_EQ(factor.damping_raises, 2);
  const HostMatrix w = weights();
  const GptqResult result = quantize_gptq(w, h, factor, {}, {});
  expect_same(result.matrix, round_to_nearest(w, h, 128), "fallback");
  EXPECT_EQ(result.report.rows_rounded, w.rows);
}

TEST(Gptq, RefusesStatisticsThatNoActivationsGive) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity(), -1.0}) {
    SquareMatrix h = diagonal_hessian();
    h.row(7)[7] = bad;
    const std::string message =
        message_of([&] { (void)factor_hessian("layers.4.o_proj input", h, {}, {}); });
    EXPECT_NE(message.find("layers.4.o_proj input"), std::string::npos) << message;
    EXPECT_NE(message.find("7"), std::string::npos) << message;
  }
  const std::string message = message_of(
      [&] { (void)factor_hessian("layers.4.o_proj input", SquareMatrix(kSize), {}, {}); });
  EXPECT_NE(message.find("--calib"), std::string::npos) << message;
}

TEST(Gptq, RefusesWhatRoundToNearestRefuses) {
  HostMatrix w = weights();
  const SquareMatrix h = correlated_hessian(3);
  w.row(65)[130] = std::nanf("");
  const std::string message = message_of([&] { (void)run(w, h, {}); });
  EXPECT_NE(message.find("layers.0.down_proj: row 65, column 130"), std::string::npos) << message;
}

}  // namespace
}  // namespace fut
