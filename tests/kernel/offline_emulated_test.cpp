// What quantising runs on a GPU, its own source, on the CPU (tests/emulator): every bit is the one that the
// host's own code gives, whatever the shape and whatever stands in the groups beside.
#include <gtest/gtest.h>

#include "engine/quantize_layer.h"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/warp.cuh"
// The instructions first: the kernels' text uses their words.
#include "kernels/cuda/int4_round.cuh"
#include "kernels/cuda/pack_weights.cuh"
#include "tests/kernel/offline_cases.h"

namespace fut::test {
namespace {

constexpr int kThreads = 256;

std::string round_emulated(const RoundToInt4Args& a, std::uint32_t seed) {
  emulator::Launch launch;
  launch.threads = kThreads;
  const std::int64_t groups = a.w.rows * (a.w.cols / a.group_size);
  const int of_block = kThreads / cuda::kGroupLanes;
  launch.num_blocks = static_cast<int>((groups + of_block - 1) / of_block);
  launch.seed = seed;
  return emulator::run(launch, [&](std::uint8_t*) {
    cuda::ptx::take_turn();
    const std::int64_t group =
        std::int64_t{cuda::blockIdx.x} * of_block + cuda::threadIdx.x / cuda::kGroupLanes;
    const int lane = static_cast<int>(cuda::threadIdx.x % 32);
    if (a.group_size == 128) {
      cuda::round_group<16>(a, group, lane);
    } else {
      cuda::round_group<8>(a, group, lane);
    }
  });
}

QuantizedMatrix rounded(const OfflineCase& problem, const HostMatrix& w,
                        std::span<const float> importance) {
  QuantizedMatrix q(w.rows, w.cols, problem.group_size);
  std::uint64_t bad = ~std::uint64_t{0};
  const RoundToInt4Args args{{w.values.data(), w.rows, w.cols, w.cols},
                             importance.empty() ? nullptr : importance.data(),
                             problem.group_size,
                             problem.searched,
                             q.codes.data(),
                             q.scales.data(),
                             &bad};
  check(args);
  EXPECT_EQ(round_emulated(args, 3), "");
  EXPECT_EQ(bad, ~std::uint64_t{0});
  return q;
}

TEST(OfflineEmulated, CodesAndScalesAreTheHosts) {
  for (const OfflineCase& problem : offline_cases()) {
    SCOPED_TRACE(problem.name);
    const OfflineMatrix matrix(problem, 5);
    for (const std::span<const float> importance :
         {std::span<const float>(matrix.importance), std::span<const float>()}) {
      const QuantizedMatrix found = rounded(problem, matrix.w, importance);
      const QuantizedMatrix expected =
          quantize_rtn(matrix.w, importance, problem.group_size, rule_of(problem), {});
      EXPECT_EQ(found.codes, expected.codes);
      EXPECT_EQ(found.scales, expected.scales);
    }
  }
}

TEST(OfflineEmulated, NamesTheFirstWeightThatNoScaleServes) {
  const OfflineCase problem{"bad", 9, 256, 128, true};
  OfflineMatrix matrix(problem, 5);
  matrix.w.row(7)[200] = std::numeric_limits<float>::quiet_NaN();
  matrix.w.row(4)[131] = -0x1p127F;
  matrix.w.row(4)[250] = std::numeric_limits<float>::infinity();
  QuantizedMatrix q(9, 256, 128);
  std::uint64_t bad = ~std::uint64_t{0};
  const RoundToInt4Args args{{matrix.w.values.data(), 9, 256, 256},
                             matrix.importance.data(),
                             128,
                             true,
                             q.codes.data(),
                             q.scales.data(),
                             &bad};
  EXPECT_EQ(round_emulated(args, 1), "");
  EXPECT_EQ(bad, 4U * 256 + 131);
}

TEST(OfflineEmulated, StreamsAreTheHosts) {
  for (const int group_size : {128, 64}) {
    for (const layout::RowOrder& order :
         {layout::RowOrder::natural(37), layout::RowOrder::gate_up(21),
          layout::RowOrder::qkv(2, 1, 64)}) {
      const OfflineCase problem{"", order.source_rows, 384, group_size, true};
      const OfflineMatrix matrix(problem, 7);
      const QuantizedMatrix q =
          quantize_rtn(matrix.w, matrix.importance, group_size, ScaleRule::MinMax, {});
      const layout::Int4Tile tile{order.packed_rows(), 384, group_size};
      std::vector<std::uint32_t> words(static_cast<std::size_t>(tile.bytes() / 4));
      const PackInt4Args args{q.codes.data(), q.scales.data(), order, tile,
                              reinterpret_cast<std::uint8_t*>(words.data())};
      check(args);
      for (std::size_t i = 0; i < words.size(); ++i) {
        words[i] = cuda::packed_int4_word(args, static_cast<std::int64_t>(i));
      }
      const std::vector<std::uint8_t> expected = pack_int4(q, order, {});
      EXPECT_EQ(std::memcmp(words.data(), expected.data(), expected.size()), 0)
          << order.source_rows << " rows, groups of " << group_size;
    }
  }
}

TEST(OfflineEmulated, ErrorsAreTheHosts) {
  for (const OfflineCase& problem : offline_cases()) {
    SCOPED_TRACE(problem.name);
    const OfflineMatrix matrix(problem, 9);
    const QuantizedMatrix q =
        quantize_rtn(matrix.w, matrix.importance, problem.group_size, ScaleRule::MinMax, {});
    std::vector<double> errors(static_cast<std::size_t>(problem.rows)), energies = errors;
    const WeightedErrorsArgs args{
        {matrix.w.values.data(), problem.rows, problem.cols, problem.cols},
        matrix.importance.data(),
        problem.group_size,
        q.codes.data(),
        q.scales.data(),
        errors.data(),
        energies.data()};
    check(args);
    emulator::Launch launch;
    launch.num_blocks = (problem.rows + cuda::kErrorRows - 1) / cuda::kErrorRows;
    launch.shared_bytes = sizeof(cuda::ErrorTile);
    EXPECT_EQ(emulator::run(launch,
                            [&](std::uint8_t* shared) {
                              cuda::ptx::take_turn();
                              cuda::sum_weighted_errors(
                                  args, std::int64_t{cuda::blockIdx.x} * cuda::kErrorRows,
                                  static_cast<int>(cuda::threadIdx.x),
                                  *reinterpret_cast<cuda::ErrorTile*>(shared));
                            }),
              "");
    double error = 0, energy = 0;
    for (std::size_t r = 0; r < errors.size(); ++r) {
      error += errors[r];
      energy += energies[r];
    }
    EXPECT_EQ(error / energy, relative_error(matrix.w, q, matrix.importance, {}));
  }
}

}  // namespace
}  // namespace fut::test
