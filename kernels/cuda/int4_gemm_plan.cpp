// The choices behind plan_int4_gemm (README.md of this folder, "The INT4 main loop"). With few
// tokens the loop is bound by memory and every block takes all of K; with more, blocks of a cluster
// share K, and of the ways to do so the one is taken that a simple account of cycles likes best.
#include "kernels/cuda/int4_gemm_plan.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/check.h"
#include "kernels/cuda/int4_gemm_instances.h"
#include "kernels/error.h"

namespace fut::cuda {
namespace {

constexpr int kWarps = kInt4GemmThreads / 32;

// From this size on a launch of few tokens wants larger pieces.
constexpr std::int64_t kLargeMatrixBytes = 32LL << 20;
// Up to here every block takes all of K.
constexpr int kFewTokens = 4;

int aligned(int bytes) {
  return (bytes + 127) / 128 * 128;
}

int divided_up(int a, int b) {
  return (a + b - 1) / b;
}

int parts_of(const Int4GemmConfigValues& config, int cluster) {
  return layout::kNumKSegments / cluster / config.segments;
}

// The most columns that a block of a cluster has to hold.
int block_groups(int num_groups, int cluster) {
  const int segments = layout::kNumKSegments / cluster;
  int most = 0;
  for (int rank = 0; rank < cluster; ++rank) {
    most = std::max(most, layout::k_segment_begin((rank + 1) * segments, num_groups) -
                              layout::k_segment_begin(rank * segments, num_groups));
  }
  return most;
}

Int4GemmLayout lay_out(const Int4GemmConfigValues& config, const layout::Int4Tile& tile,
                       const Int4GemmArgs& args, const Int4GemmUse& use) {
  const int groups = block_groups(tile.num_groups(), args.cluster);
  const int pairs = config.clusters ? 2 * kWarps * 32 * config.owned_pairs()
                                    : 8 * args.num_tokens * args.round_strips;
  Int4GemmLayout l;
  l.inputs = aligned(kWarps * kWarpBarriers * 8);
  l.squares = l.inputs + (use.fetches ? aligned(pairs * 16) : 0);
  l.biases = l.squares + aligned(layout::kNumKSegments * kMaxInt4Tokens * 4);
  l.ring = l.biases + aligned(groups * 8 * config.tiles * 4);
  const int ring_end =
      l.ring + aligned(kWarps * args.stages * config.piece_groups * tile.record_bytes());
  if (config.tiles > 1) {
    l.tokens = (ring_end + kInt4SwizzleBytes - 1) / kInt4SwizzleBytes * kInt4SwizzleBytes;
    l.partial = l.tokens + groups * tile.group * 2 * 8 * config.tiles;
  } else {
    l.tokens = ring_end;
    l.token_stride = groups * tile.group * 2 + 16;
    l.partial = l.tokens + aligned(args.num_tokens * l.token_stride);
  }
  const int strip_bytes = 16 * args.num_tokens * 4;
  l.exchange =
      l.partial + (config.clusters ? 0 : args.round_strips * layout::kNumKSegments * strip_bytes);
  l.bytes = l.exchange + (config.clusters ? kWarps * config.exchange_bytes() : 0);
  return l;
}

int max_clusters(int cluster, const Int4GemmMachine& machine) {
  switch (cluster) {
    case 2:
      return machine.max_clusters_of_2;
    case 4:
      return machine.max_clusters_of_4;
    case 8:
      return machine.max_clusters_of_8;
    default:
      return machine.num_multiprocessors;
  }
}

}  // namespace

std::optional<Int4GemmPlan> make_int4_plan(const Int4GemmConfigValues& config, int cluster,
                                           const layout::Int4Tile& tile, int num_tokens,
                                           const Int4GemmUse& use, const Int4GemmMachine& machine) {
  const int clusters = std::min(max_clusters(cluster, machine), kMaxInt4Blocks / cluster);
  const int parts = parts_of(config, cluster);
  if (clusters == 0 || parts == 0) return std::nullopt;
  // Strips of a warpgroup have their segments in common.
  if (config.tiles > 1 && parts > kWarps / 4) return std::nullopt;
  Int4GemmPlan plan;
  plan.config = config;
  plan.num_blocks = clusters * cluster;
  plan.args.num_strips = tile.num_strips();
  plan.args.num_groups = tile.num_groups();
  plan.args.num_tokens = num_tokens;
  plan.args.cluster = cluster;
  plan.args.lanes = kWarps / parts;
  if (config.clusters) {
    for (plan.args.stages = kMaxInt4Stages; plan.args.stages >= kFewTokenStages;
         --plan.args.stages) {
      plan.args.layout = lay_out(config, tile, plan.args, use);
      if (plan.args.layout.bytes <= kMaxSharedBytes) return plan;
    }
    return std::nullopt;
  }
  plan.args.stages = kFewTokenStages;
  plan.args.round_strips = divided_up(tile.num_strips(), clusters);
  for (; plan.args.round_strips >= 1; --plan.args.round_strips) {
    plan.args.layout = lay_out(config, tile, plan.args, use);
    if (plan.args.layout.bytes <= kMaxSharedBytes) return plan;
  }
  return std::nullopt;
}

namespace {

// About how many cycles the plan takes.
double cycles(const Int4GemmPlan& plan, const layout::Int4Tile& tile, const Int4GemmUse& use) {
  // Of a multiprocessor: a strip and group by tiles of tokens; of a message of an exchange; bytes from memory
  // and from the second-level cache.
  constexpr std::array<double, 5> kGroupCycles = {0, 45, 50, 0, 55};
  constexpr double kMessageCycles = 16;
  constexpr double kMemoryBytes = 17;
  constexpr double kCacheBytes = 24;
  const Int4GemmArgs& a = plan.args;
  const int clusters = plan.num_blocks / a.cluster;
  const int rounds = divided_up(divided_up(a.num_strips, clusters), a.lanes);
  const double groups = static_cast<double>(a.num_groups) / plan.config.shares();  // of a warp
  const double strip = groups * kGroupCycles[static_cast<std::size_t>(plan.config.tiles)] +
                       kMessageCycles * (plan.config.shares() - 1);
  const double memory = static_cast<double>(tile.bytes()) / plan.num_blocks / kMemoryBytes;
  const double tokens = static_cast<double>(a.num_tokens) * tile.cols / a.cluster * use.input_bytes;
  return std::max(kWarps * rounds * strip, memory) + tokens / kCacheBytes;
}

std::optional<Int4GemmPlan> plan_few_tokens(const layout::Int4Tile& tile, int num_tokens,
                                            const Int4GemmUse& use,
                                            const Int4GemmMachine& machine) {
  const bool large = tile.bytes() >= kLargeMatrixBytes;
  const bool wide = tile.num_groups() * tile.group > 4096;
  if (large && wide) {
    if (const auto plan = make_int4_plan({1, 1, 4, false}, 1, tile, num_tokens, use, machine))
      return plan;
  }
  return make_int4_plan({1, 1, 2, false}, 1, tile, num_tokens, use, machine);
}

}  // namespace

std::optional<Int4GemmPlan> plan_int4_gemm(const layout::Int4Tile& tile, int num_tokens,
                                           const Int4GemmUse& use, const Int4GemmMachine& machine) {
  FUT_CHECK(num_tokens >= 1 && num_tokens <= kMaxInt4Tokens, "{} tokens in one launch, {} at most",
            num_tokens, kMaxInt4Tokens);
  if (num_tokens <= kFewTokens) {
    if (const auto plan = plan_few_tokens(tile, num_tokens, use, machine)) return plan;
  }
  const int tiles = num_tokens <= 8 ? 1 : num_tokens <= 16 ? 2 : 4;
  std::optional<Int4GemmPlan> best;
  for (const int cluster : {2, 4, 8}) {
    for (const int segments : kInt4ExchangeSegments) {
      const auto plan =
          make_int4_plan({tiles, segments, 1, true}, cluster, tile, num_tokens, use, machine);
      if (!plan) continue;
      if (!best || cycles(*plan, tile, use) < cycles(*best, tile, use)) best = plan;
    }
  }
  return best;
}

void no_such_instance(const Int4GemmConfigValues& config) {
  throw runtime_failure(
      "no instance of the INT4 main loop for {} tiles, {} segments, {} groups a piece, {} clusters",
      config.tiles, config.segments, config.piece_groups, config.clusters ? "with" : "without");
}

void check_int4_operand(const void* x, std::int64_t row_stride, std::size_t number_bytes) {
  constexpr std::size_t kAlignment = 16;
  const auto stride = static_cast<std::size_t>(row_stride) * number_bytes;
  FUT_CHECK(reinterpret_cast<std::uintptr_t>(x) % kAlignment == 0 && stride % kAlignment == 0,
            "x lies at {} with rows {} bytes apart: the GPU reads {} bytes at a time", x, stride,
            kAlignment);
}

void check_no_rotation(int rotation_block) {
  FUT_CHECK(rotation_block == 0,
            "rotation_block is {}: with INT4 weights the GPU leaves rotation to attention",
            rotation_block);
}

}  // namespace fut::cuda
