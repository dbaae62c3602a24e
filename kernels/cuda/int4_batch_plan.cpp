// The choice behind plan_int4_batch: of all ways to cut the matrix up the one that a simple account of
// cycles likes best (README.md of this folder, "INT4 products of a batch").
#include "kernels/cuda/int4_batch_plan.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/check.h"
#include "kernels/error.h"

namespace fut::cuda {
namespace {

int divided_up(int a, int b) {
  return (a + b - 1) / b;
}

int max_clusters(int cluster, const Int4GemmMachine& machine) {
  switch (cluster) {
    case 1:
      return machine.num_multiprocessors;
    case 2:
      return machine.max_clusters_of_2;
    case 4:
      return machine.max_clusters_of_4;
    default:
      return machine.max_clusters_of_8;
  }
}

// The most groups that a block of a cluster has.
int block_groups(const Int4BatchArgs& a) {
  int most = 0;
  for (int rank = 0; rank < a.cluster; ++rank) {
    most = std::max(most, layout::k_segment_begin((rank + 1) * a.segments(), a.num_groups) -
                              layout::k_segment_begin(rank * a.segments(), a.num_groups));
  }
  return most;
}

Int4BatchLayout lay_out(const Int4BatchArgs& a, int tiles, const layout::Int4Tile& tile,
                        bool fetches) {
  const int warps = a.strips();
  const int groups = batch_stage_groups(tiles);
  // The first level is in registers; published sums need a place in any case.
  const int levels = static_cast<int>(std::bit_width(static_cast<unsigned>(a.segments()))) - 2;
  Int4BatchLayout l;
  const int stage = groups * (8 * tiles * tile.group * 2 + warps * tile.record_bytes());
  l.stage_bytes = divided_up(stage, kInt4SwizzleBytes) * kInt4SwizzleBytes;
  l.barriers = l.ring + a.stages * l.stage_bytes;
  l.noticed = l.barriers + 3 * 8 * kMaxBatchStages;
  l.factors = l.noticed + 16;
  l.biases = l.factors + 4 * kMaxInt4Tokens;
  l.parked = l.biases + a.stages * groups * 4 * tiles * 16;
  l.inputs = l.parked + std::max(levels, 1) * warps * tiles * 32 * 16;
  l.bytes = l.inputs + (fetches ? warps * batch_owned_pairs(tiles, a.cluster) * 32 * 16 : 0);
  return l;
}

// About how many cycles the plan takes.
double cycles(const Int4BatchPlan& plan, const layout::Int4Tile& tile,
              const Int4GemmMachine& machine) {
  // Of a multiprocessor: a strip and group by tiles of tokens; the chain of a warpgroup's steps for a
  // group; the sums of a cluster; bytes a cycle from memory, of all blocks alike, and into one block.
  constexpr std::array<double, 5> kGroupCycles = {0, 32, 38, 0, 50};
  constexpr double kChainCycles = 450;
  constexpr double kClusterCycles = 1500;
  constexpr double kMemoryBytes = 17;
  constexpr double kBlockBytes = 40;
  const Int4BatchArgs& a = plan.args;
  const int clusters = plan.num_blocks / a.cluster;
  const double uses = static_cast<double>(divided_up(a.row_groups(), clusters)) * block_groups(a);
  const double loop =
      uses *
      std::max(kChainCycles, a.strips() * kGroupCycles[static_cast<std::size_t>(plan.tiles)]);
  const double weights = static_cast<double>(tile.bytes());
  const double tokens = uses * 8 * plan.tiles * tile.group * 2;
  const double memory = weights / machine.num_multiprocessors / kMemoryBytes;
  const double block = (weights / plan.num_blocks + tokens) / kBlockBytes;
  return std::max({loop, memory, block}) + (a.cluster > 1 ? kClusterCycles : 0);
}

}  // namespace

std::optional<Int4BatchPlan> make_int4_batch_plan(int warpgroups, int cluster,
                                                  const layout::Int4Tile& tile, int num_tokens,
                                                  bool fetches, const Int4GemmMachine& machine) {
  const int clusters = std::min(max_clusters(cluster, machine), kMaxInt4Blocks / cluster);
  Int4BatchPlan plan;
  plan.tiles = num_tokens <= 8 ? 1 : num_tokens <= 16 ? 2 : 4;
  plan.args.num_strips = tile.num_strips();
  plan.args.num_groups = tile.num_groups();
  plan.args.num_tokens = num_tokens;
  plan.args.cluster = cluster;
  plan.args.warpgroups = warpgroups;
  const int row_groups = plan.args.row_groups();
  if (clusters == 0 || (cluster > 1 && row_groups > clusters)) return std::nullopt;
  plan.num_blocks = cluster * std::min(row_groups, clusters);
  for (plan.args.stages = kMaxBatchStages; plan.args.stages >= 2; --plan.args.stages) {
    plan.args.layout = lay_out(plan.args, plan.tiles, tile, fetches);
    if (plan.args.layout.bytes <= kMaxSharedBytes) return plan;
  }
  return std::nullopt;
}

Int4BatchPlan plan_int4_batch(const layout::Int4Tile& tile, int num_tokens, bool fetches,
                              int most_warpgroups, const Int4GemmMachine& machine) {
  FUT_CHECK(num_tokens >= 1 && num_tokens <= kMaxInt4Tokens, "{} tokens in one launch, {} at most",
            num_tokens, kMaxInt4Tokens);
  std::optional<Int4BatchPlan> best;
  for (const int cluster : {1, 2, 4, 8}) {
    for (int warpgroups = 1; warpgroups <= most_warpgroups; ++warpgroups) {
      const auto plan =
          make_int4_batch_plan(warpgroups, cluster, tile, num_tokens, fetches, machine);
      if (plan && (!best || cycles(*plan, tile, machine) < cycles(*best, tile, machine)))
        best = plan;
    }
  }
  if (!best) throw runtime_failure("no block of this GPU holds {} tokens of a product", num_tokens);
  return *best;
}

}  // namespace fut::cuda
