// What GPTQ runs on a GPU, its own source, on the CPU (tests/emulator): every bit is the one that plain loops
// give (tests/support/gptq_on_host.h), whose results are the host quantiser's.
#include <cmath>
#include <gtest/gtest.h>

#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/warp.cuh"
// The instructions first: the kernels' text uses their words.
#include "kernels/cuda/gptq_matrices.cuh"
#include "kernels/cuda/gptq_rows.cuh"
#include "tests/kernel/gptq_cases.h"
#include "tests/support/gptq_on_host.h"

namespace fut::test {
namespace {

constexpr int kWarps = 2;

template <class Body>
void run_rows(std::int64_t rows, std::uint32_t seed, const Body& body) {
  emulator::Launch launch;
  launch.threads = kWarps * cuda::kWarpColumns;
  launch.num_blocks = static_cast<int>((rows + kWarps - 1) / kWarps);
  launch.seed = seed;
  EXPECT_EQ(emulator::run(launch,
                          [&](std::uint8_t*) {
                            cuda::ptx::take_turn();
                            const std::int64_t row =
                                std::int64_t{cuda::blockIdx.x} * kWarps + cuda::threadIdx.x / 32;
                            if (row < rows) body(row, static_cast<int>(cuda::threadIdx.x % 32));
                          }),
            "");
}

TEST(GptqEmulated, ASweptBlockIsTheHosts) {
  HostGptqOps host;
  for (const GptqCase& problem : gptq_cases()) {
    GptqRows found(problem), expected(problem);
    for (std::int64_t begin = 0; begin < problem.cols; begin += kGptqBlockColumns) {
      std::vector<double> steps = found.room_for_block(), wanted = steps;
      const auto args = [&](GptqRows& rows, std::vector<double>& negated) {
        return SweepBlockArgs{
            rows.q(),          begin,         rows.permuted.data(), rows.factor.upper.values.data(),
            rows.order.data(), negated.data()};
      };
      host.sweep_block(args(expected, wanted));
      const SweepBlockArgs on_device = args(found, steps);
      run_rows(problem.rows, 3,
               [&](std::int64_t row, int lane) { cuda::sweep_row(on_device, row, lane); });
      EXPECT_EQ(steps, wanted);
    }
    EXPECT_EQ(found.codes, expected.codes);
  }
}

TEST(GptqEmulated, ABlockOnItsWayDownIsTheHosts) {
  HostGptqOps host;
  for (const GptqCase& problem : gptq_cases()) {
    for (const bool fits_scales : {false, true}) {
      GptqRows found(problem), expected(problem);
      const std::vector<std::int8_t> codes = found.codes;
      const std::vector<std::uint16_t> scales = found.scales;
      for (std::int64_t begin = 0; begin < problem.cols; begin += kGptqBlockColumns) {
        std::vector<double> steps = found.room_for_block(), wanted = steps;
        const auto args = [&](GptqRows& rows, std::vector<double>& negated) {
          return DescendBlockArgs{rows.q(),
                                  begin,
                                  fits_scales,
                                  rows.h.values.data(),
                                  rows.ridge,
                                  rows.residual.data(),
                                  rows.product.data(),
                                  negated.data()};
        };
        host.descend_block(args(expected, wanted));
        const DescendBlockArgs on_device = args(found, steps);
        run_rows(problem.rows, 4,
                 [&](std::int64_t row, int lane) { cuda::descend_row(on_device, row, lane); });
        EXPECT_EQ(steps, wanted);
      }
      EXPECT_EQ(found.codes, expected.codes);
      EXPECT_EQ(found.scales, expected.scales);
      EXPECT_EQ(found.residual, expected.residual);
      // Something was done.
      EXPECT_EQ(found.codes == codes, fits_scales);
      EXPECT_EQ(found.scales == scales, !fits_scales);
    }
  }
}

TEST(GptqEmulated, DotsAreTheHosts) {
  HostGptqOps host;
  GptqRows rows({5, 384, 128});
  std::vector<double> found(5, -1), expected(5, -2);
  const auto args = [&](std::vector<double>& out) {
    return RowDotsArgs{5, 384, rows.residual.data(), rows.product.data(), out.data()};
  };
  host.row_dots(args(expected));
  const RowDotsArgs on_device = args(found);
  run_rows(5, 5, [&](std::int64_t row, int lane) { cuda::dot_row(on_device, row, lane); });
  EXPECT_EQ(found, expected);
}

// ---- element by element: any order will do ----------------------------------------------------------

template <class Body>
void for_elements(std::int64_t rows, std::int64_t cols, const Body& body) {
  for (std::int64_t r = rows - 1; r >= 0; --r) {
    for (std::int64_t c = cols - 1; c >= 0; --c) body(r, c);
  }
}

TEST(GptqEmulated, MomentsAreTheHosts) {
  HostGptqOps host;
  for (const int spoiled : {0, 1, 2}) {
    constexpr std::int64_t kSize = 128;
    GptqRows rows({3, kSize, 128});
    if (spoiled == 1) rows.h.row(40)[7] = std::nan("");
    if (spoiled == 2) rows.h.row(33)[33] = -1;
    std::vector<double> h = rows.h.values, g = rows.h.values;
    for (std::size_t i = 0; i < g.size(); ++i) g[i] += static_cast<double>(i % 19);
    std::vector<double> diagonal(kSize, -1), h_too = h, g_too = g, diagonal_too = diagonal;
    std::uint64_t bad = ~std::uint64_t{0}, bad_too = bad;
    const FinishMomentsArgs args{kSize, h.data(), g.data(), diagonal.data(), &bad};
    run_rows(kSize, 6, [&](std::int64_t i, int lane) {
      for (std::int64_t j = lane; j <= i; j += cuda::kWarpColumns) cuda::finish_moment(args, i, j);
    });
    host.finish_moments({kSize, h_too.data(), g_too.data(), diagonal_too.data(), &bad_too});
    EXPECT_EQ(bad, bad_too);
    EXPECT_EQ(bad == ~std::uint64_t{0}, spoiled == 0);
    if (spoiled == 1) continue;  // NaN is no equal of its own
    EXPECT_EQ(h, h_too);
    EXPECT_EQ(g, g_too);
    EXPECT_EQ(diagonal, diagonal_too);
  }
}

// The steps of inverse_factor of kernels/cuda/gptq_ops.cpp, its libraries' by the loader.
TEST(GptqEmulated, AFactorTurnedRoundIsTheHosts) {
  GptqRows rows({3, 256, 128});
  std::vector<double> upper(rows.h.values.size());
  const InverseFactorArgs args{256,        rows.h.values.data(), rows.order.data(),
                               rows.ridge, upper.data(),         nullptr};
  SquareMatrix m(256);
  for_elements(256, 256, [&](std::int64_t i, std::int64_t j) {
    m.row(i)[j] = cuda::reversed_hessian(args, i, j);
  });
  ASSERT_FALSE(cholesky_lower(m, {}).has_value());
  invert_lower(m, {});
  for (std::int64_t index = 0; index < 256 * 128; ++index) {
    cuda::turn_round(m.values.data(), 256, index);
  }
  EXPECT_EQ(m.values, rows.factor.upper.values);
}

TEST(GptqEmulated, RowsAreGatheredCorrectedAndCodedAsTheHostsAre) {
  HostGptqOps host;
  GptqRows rows({5, 256, 64});
  const std::vector<double> unset(rows.weights.size(), -1);
  for (const bool narrow : {true, false}) {
    for (const bool ordered : {true, false}) {
      std::vector<double> found = unset, expected = unset;
      GatherColumnsArgs args{5,
                             256,
                             narrow ? rows.weights.data() : nullptr,
                             narrow ? nullptr : rows.residual.data(),
                             ordered ? rows.order.data() : nullptr,
                             expected.data()};
      host.gather_columns(args);
      args.out = found.data();
      for_elements(5, 256,
                   [&](std::int64_t r, std::int64_t c) { cuda::gather_column(args, r, c); });
      EXPECT_EQ(found, expected);
    }
  }
  const std::vector<double> diagonal = diagonal_of(rows.h);
  for (const bool corrects : {true, false}) {
    std::vector<float> found(unset.size(), -1), expected = found;
    CorrectRowsArgs args{5,
                         256,
                         rows.weights.data(),
                         corrects ? rows.residual.data() : nullptr,
                         0.37,
                         rows.order.data(),
                         diagonal.data(),
                         expected.data()};
    host.correct_rows(args);
    args.target = found.data();
    for_elements(5, 256, [&](std::int64_t r, std::int64_t c) { cuda::correct_column(args, r, c); });
    EXPECT_EQ(found, expected);
    EXPECT_EQ(found[9], 0);  // an input that is always zero
  }
  std::vector<double> found = unset, expected = unset;
  ResidualsArgs args{rows.q(), rows.weights.data(), expected.data()};
  host.residuals(args);
  for_elements(5, 256, [&](std::int64_t r, std::int64_t c) {
    found[static_cast<std::size_t>(r * 256 + c)] = cuda::residual_at(args, r, c);
  });
  EXPECT_EQ(found, expected);
}

TEST(GptqEmulated, TheBetterRowIsKept) {
  HostGptqOps host;
  const GptqCase problem{5, 256, 64};
  GptqRows found(problem), expected(problem), other(problem);
  for (std::int8_t& code : other.codes) code = static_cast<std::int8_t>(-1 - code);
  for (std::uint16_t& scale : other.scales) scale ^= 0x8000U;
  const std::vector<double> losses = {1, 2, 3, std::nan(""), 5}, rounded = {2, 2, 2, 2, 6};
  const auto args = [&](GptqRows& rows) {
    return KeepBetterArgs{rows.q(), other.q(), losses.data(), rounded.data()};
  };
  host.keep_better(args(expected));
  const KeepBetterArgs on_device = args(found);
  for_elements(5, 256,
               [&](std::int64_t r, std::int64_t c) { cuda::keep_better_column(on_device, r, c); });
  EXPECT_EQ(found.codes, expected.codes);
  EXPECT_EQ(found.scales, expected.scales);
  EXPECT_EQ(found.scales[4], GptqRows(problem).scales[4] ^ 0x8000U);
  EXPECT_EQ(found.scales[0], GptqRows(problem).scales[0]);
}

}  // namespace
}  // namespace fut::test
