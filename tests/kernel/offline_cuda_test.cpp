// What quantising asks of the GPU: the same bits as the host's own code, nothing written beside, whatever
// the shape; a case as large as a matrix of a real model among them.
#include <cmath>
#include <gtest/gtest.h>
#include <numeric>

#include "engine/parallel.h"
#include "engine/quantize_layer.h"
#include "kernels/numeric/formats.h"
#include "tests/kernel/offline_cases.h"
#include "tests/support/backends.h"

namespace fut::test {
namespace {

constexpr std::uint64_t kNoneBad = ~std::uint64_t{0};

std::vector<OfflineCase> all_cases() {
  std::vector<OfflineCase> cases = offline_cases();
  cases.push_back({"of a model", 1031, 4096, 128, true});
  cases.push_back({"of a model, groups of 64", 517, 14336, 64, true});
  return cases;
}

MatrixView<const float> view_of(const Guarded<float>& data, const HostMatrix& w) {
  return {data.data(), w.rows, w.cols, w.cols};
}

TEST(OfflineCuda, CodesAndScalesAreTheHosts) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  const ParallelFor parallel_for = parallel_for_on_threads(0);
  for (const OfflineCase& problem : all_cases()) {
    SCOPED_TRACE(problem.name);
    const OfflineMatrix matrix(problem, 5);
    const HostMatrix& w = matrix.w;
    const Guarded<float> weights(*backend, w.values);
    const Guarded<float> importance(*backend, matrix.importance);
    for (const bool uniform : {false, true}) {
      const std::size_t count = w.values.size();
      const Guarded<std::int8_t> codes(*backend, std::vector<std::int8_t>(count, 99));
      const Guarded<std::uint16_t> scales(
          *backend,
          std::vector<std::uint16_t>(count / static_cast<std::size_t>(problem.group_size)));
      const Guarded<std::uint64_t> bad(*backend, {kNoneBad});
      backend->offline_ops()->round_to_int4(
          {view_of(weights, w), uniform ? nullptr : importance.data(), problem.group_size,
           problem.searched, codes.data(), scales.data(), bad.data()});
      const QuantizedMatrix expected =
          quantize_rtn(w, uniform ? std::span<const float>() : matrix.importance,
                       problem.group_size, rule_of(problem), parallel_for);
      EXPECT_TRUE(codes.values() == expected.codes);
      EXPECT_TRUE(scales.values() == expected.scales);
      EXPECT_EQ(bad.values()[0], kNoneBad);
    }
  }
}

TEST(OfflineCuda, NamesTheFirstWeightThatNoScaleServes) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  OfflineMatrix matrix({"bad", 90, 256, 128, true}, 5);
  matrix.w.row(77)[200] = kPoison;
  matrix.w.row(43)[131] = -0x1p127F;
  matrix.w.row(43)[250] = std::numeric_limits<float>::infinity();
  const Guarded<float> weights(*backend, matrix.w.values);
  const Guarded<std::int8_t> codes(*backend, std::vector<std::int8_t>(90 * 256));
  const Guarded<std::uint16_t> scales(*backend, std::vector<std::uint16_t>(90 * 2));
  const Guarded<std::uint64_t> bad(*backend, {kNoneBad});
  backend->offline_ops()->round_to_int4(
      {view_of(weights, matrix.w), nullptr, 128, true, codes.data(), scales.data(), bad.data()});
  EXPECT_EQ(bad.values()[0], 43U * 256 + 131);
}

TEST(OfflineCuda, StreamsAreTheHosts) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  for (const int group_size : {128, 64}) {
    for (const layout::RowOrder& order :
         {layout::RowOrder::natural(37), layout::RowOrder::gate_up(21),
          layout::RowOrder::gate_up(1024), layout::RowOrder::qkv(2, 1, 64),
          layout::RowOrder::qkv(32, 8, 128)}) {
      const OfflineMatrix matrix({"", order.source_rows, 384, group_size, true}, 7);
      const QuantizedMatrix q = quantize_rtn(matrix.w, matrix.importance, group_size,
                                             ScaleRule::MinMax, parallel_for_on_threads(0));
      const layout::Int4Tile tile{order.packed_rows(), 384, group_size};
      const Guarded<std::int8_t> codes(*backend, q.codes);
      const Guarded<std::uint16_t> scales(*backend, q.scales);
      const Guarded<std::uint8_t> packed(
          *backend, std::vector<std::uint8_t>(static_cast<std::size_t>(tile.bytes()), 0xEE));
      backend->offline_ops()->pack_int4({codes.data(), scales.data(), order, tile, packed.data()});
      EXPECT_TRUE(packed.values() == pack_int4(q, order, {}))
          << order.source_rows << " rows, groups of " << group_size;
    }
  }
}

TEST(OfflineCuda, ErrorsAreTheHosts) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  const ParallelFor parallel_for = parallel_for_on_threads(0);
  for (const OfflineCase& problem : all_cases()) {
    SCOPED_TRACE(problem.name);
    const OfflineMatrix matrix(problem, 9);
    const HostMatrix& w = matrix.w;
    const QuantizedMatrix q =
        quantize_rtn(w, matrix.importance, problem.group_size, ScaleRule::MinMax, parallel_for);
    const Guarded<float> weights(*backend, w.values);
    const Guarded<float> importance(*backend, matrix.importance);
    const Guarded<std::int8_t> codes(*backend, q.codes);
    const Guarded<std::uint16_t> scales(*backend, q.scales);
    const std::vector<double> unset(static_cast<std::size_t>(w.rows), -1);
    const Guarded<double> errors(*backend, unset), energies(*backend, unset);
    backend->offline_ops()->weighted_errors({view_of(weights, w), importance.data(),
                                             problem.group_size, codes.data(), scales.data(),
                                             errors.data(), energies.data()});
    const std::vector<double> error = errors.values(), energy = energies.values();
    EXPECT_EQ(std::accumulate(error.begin(), error.end(), 0.0) /
                  std::accumulate(energy.begin(), energy.end(), 0.0),
              relative_error(w, q, matrix.importance, parallel_for));
  }
}

TEST(OfflineCuda, E4m3CopiesAreTheHosts) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  for (const OfflineCase& problem : all_cases()) {
    SCOPED_TRACE(problem.name);
    const OfflineMatrix matrix(problem, 11);
    constexpr std::int64_t kColumns = 64;  // of a divisor
    std::vector<float> divisors;
    for (std::int64_t c = 0; c < problem.cols; c += kColumns) {
      divisors.push_back(std::ldexp(1.0F, static_cast<int>(c / kColumns % 5) - 2));
    }
    HostMatrix divided = matrix.w;
    for (std::int64_t r = 0; r < divided.rows; ++r) {
      for (std::int64_t c = 0; c < divided.cols; ++c) {
        divided.row(r)[c] /= divisors[static_cast<std::size_t>(c / kColumns)];
      }
    }
    const Guarded<float> weights(*backend, matrix.w.values);
    const Guarded<float> factors(*backend, divisors);
    for (const bool divides : {false, true}) {
      const Guarded<std::uint8_t> codes(*backend,
                                        std::vector<std::uint8_t>(matrix.w.values.size(), 0xEE));
      const Guarded<float> scales(
          *backend, std::vector<float>(static_cast<std::size_t>(problem.rows), kPoison));
      backend->offline_ops()->pack_e4m3({view_of(weights, matrix.w),
                                         divides ? factors.data() : nullptr, divides ? kColumns : 0,
                                         codes.data(), scales.data()});
      const PackedE4m3 expected = pack_e4m3(divides ? divided : matrix.w, {});
      EXPECT_TRUE(codes.values() == expected.codes);
      EXPECT_TRUE(scales.values() == expected.scales);
    }
  }
}

TEST(OfflineCuda, PowersOfTwoMoveExactly) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  constexpr std::int64_t kRows = 33, kCols = 300;
  const std::vector<float> values = normal_values(kRows * kCols, 3);
  std::vector<std::int32_t> of_rows, of_columns;
  for (int r = 0; r < kRows; ++r) of_rows.push_back(r % 9 - 4);
  for (int c = 0; c < kCols; ++c) of_columns.push_back(c % 7 - 3);
  const Guarded<std::int32_t> rows(*backend, of_rows), columns(*backend, of_columns);
  for (const bool by_row : {true, false}) {
    const Guarded<float> w(*backend, values);
    backend->offline_ops()->shift({{w.data(), kRows, kCols, kCols},
                                   by_row ? rows.data() : nullptr,
                                   by_row ? nullptr : columns.data()});
    std::vector<float> expected = values;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const int exponent = by_row ? of_rows[i / kCols] : -of_columns[i % kCols];
      expected[i] = std::ldexp(expected[i], exponent);
    }
    EXPECT_EQ(w.values(), expected);
  }
}

TEST(OfflineCuda, SumsOfColumns) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  constexpr std::int64_t kRows = 77, kCols = 321;
  const GuardedActivation x(*backend, DType::BF16, {kRows, kCols}, normal_values(kRows * kCols, 3));
  std::vector<double> squares(kCols, 0.25);
  std::vector<float> largest(kCols, 0.5F);
  const Guarded<double> sums(*backend, squares);
  const Guarded<float> sizes(*backend, largest);
  backend->offline_ops()->column_sums({x.const_view(), sums.data(), sizes.data()});
  const std::vector<float> values = x.values();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    squares[i % kCols] += value * value;
    largest[i % kCols] = std::max(largest[i % kCols], std::fabs(values[i]));
  }
  EXPECT_EQ(sums.values(), squares);
  EXPECT_EQ(sizes.values(), largest);
}

// Rows of plus or minus a power of two: their root mean square is exact.
TEST(OfflineCuda, NormalisedRows) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  constexpr std::int64_t kRows = 9, kCols = 1024;
  std::vector<float> values, expected;
  for (std::int64_t i = 0; i < kRows * kCols; ++i) {
    const float sign = i % 3 == 0 ? -1.0F : 1.0F;
    values.push_back(sign * std::ldexp(1.0F, static_cast<int>(i / kCols) - 4));
    expected.push_back(sign);
  }
  const GuardedActivation x(*backend, DType::BF16, {kRows, kCols}, values);
  const GuardedActivation out(*backend, DType::BF16, {kRows, kCols});
  backend->offline_ops()->normalise({x.const_view(), 1e-12F, out.view()});
  EXPECT_EQ(out.values(), expected);
}

TEST(OfflineCuda, WeightsInBf16) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  const std::vector<float> values = normal_values(1000, 3);
  const Guarded<float> from(*backend, values);
  const Guarded<std::uint16_t> to(*backend, std::vector<std::uint16_t>(values.size()));
  backend->offline_ops()->round_to_bf16({from.data(), to.data(), std::ssize(values)});
  std::vector<std::uint16_t> expected;
  for (const float v : values) expected.push_back(f32_to_bf16(v));
  EXPECT_EQ(to.values(), expected);
}

}  // namespace
}  // namespace fut::test
