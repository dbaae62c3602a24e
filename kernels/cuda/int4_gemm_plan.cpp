// The choices behind plan_int4_gemm, as measured on an H200 (kernels/README.md, "The INT4
// main loop on the GPU").
#include "kernels/cuda/int4_gemm_plan.h"

#include <algorithm>
#include <array>

#include "kernels/check.h"
#include "kernels/error.h"

namespace fut::cuda {
namespace {

// From this size on a launch is long enough that its own loop counts for more than how well it
// overlaps with its neighbours.
constexpr std::int64_t kLargeMatrixBytes = 32LL << 20;

// Tokens times strips whose sums meet at a time: fewer barriers against more shared memory.
constexpr int kRoundTokens = 64;

constexpr int kWarps = kInt4GemmThreads / 32;

int aligned(int bytes) {
  return (bytes + 127) / 128 * 128;
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
                       int num_tokens, int round_strips) {
  Int4GemmLayout l;
  l.squares = aligned(kWarps * config.stages * 8);
  l.ring = l.squares + aligned(layout::kNumKSegments * kMaxInt4Tokens * 4);
  const int piece = config.piece_groups * tile.record_bytes();
  l.tokens = l.ring + aligned(kWarps * config.stages * piece);
  l.token_stride = block_groups(tile.num_groups(), config.cluster) * tile.group * 2 + 16;
  l.partial = l.tokens + aligned(num_tokens * l.token_stride);
  l.incoming = l.partial + round_strips * layout::kNumKSegments * 16 * num_tokens * 4;
  const int sent =
      config.cluster == 1 ? 0 : 2 * round_strips * config.cluster * 16 * num_tokens * 4;
  l.bytes = l.incoming + sent;
  return l;
}

// In order of preference; the first that fits is taken.
std::array<Int4GemmConfigValues, 4> candidates(const layout::Int4Tile& tile, int num_tokens) {
  const bool large = tile.bytes() >= kLargeMatrixBytes;
  const bool wide = tile.num_groups() * tile.group > 4096;
  const Int4GemmConfigValues plain{1, 1, 2, 2, 0};
  const Int4GemmConfigValues pair{1, 2, 2, 2, 0};
  const Int4GemmConfigValues four{1, 4, 2, 2, 0};
  const Int4GemmConfigValues eight{4, 8, 1, 2, 0};
  if (num_tokens <= 4) {
    if (large && !wide && tile.group == 128) return {{{1, 1, 2, 3, 2}, plain, pair, four}};
    if (large && wide) return {{{1, 1, 4, 2, 0}, plain, pair, four}};
    return {{plain, pair, four, four}};
  }
  if (num_tokens <= 8) {
    if (wide) return {{pair, four, four, four}};
    if (large && tile.group == 128) return {{{1, 1, 2, 3, 2}, plain, pair, four}};
    return {{plain, pair, four, four}};
  }
  if (num_tokens <= 16) {
    return {{{2, 2, 2, 2, 0}, {2, 4, 2, 2, 0}, eight, eight}};
  }
  return {{{4, 4, 1, 2, 0}, eight, eight, eight}};
}

int num_blocks(const Int4GemmConfigValues& config, const Int4GemmMachine& machine) {
  switch (config.cluster) {
    case 2:
      return 2 * machine.max_clusters_of_2;
    case 4:
      return 4 * machine.max_clusters_of_4;
    case 8:
      return 8 * machine.max_clusters_of_8;
    default:
      return machine.num_multiprocessors;
  }
}

// The strips of one warp's round: as many as there are, or as many as fit.
int round_strips(const Int4GemmConfigValues& config, const layout::Int4Tile& tile, int num_tokens,
                 int blocks) {
  const int clusters = blocks / config.cluster;
  const int strips_of_cluster = (tile.num_strips() + clusters - 1) / clusters;
  const int strips_of_warp = (strips_of_cluster + config.cluster - 1) / config.cluster;
  int strips = std::min(strips_of_warp, std::max(1, kRoundTokens / num_tokens));
  while (strips > 1 && lay_out(config, tile, num_tokens, strips).bytes > kMaxSharedBytes) --strips;
  return strips;
}

}  // namespace

std::optional<Int4GemmPlan> plan_int4_gemm(const layout::Int4Tile& tile, int num_tokens,
                                           const Int4GemmMachine& machine) {
  FUT_CHECK(num_tokens >= 1 && num_tokens <= kMaxInt4Tokens, "{} tokens in one launch, {} at most",
            num_tokens, kMaxInt4Tokens);
  for (const Int4GemmConfigValues& config : candidates(tile, num_tokens)) {
    Int4GemmPlan plan;
    plan.config = config;
    plan.num_blocks = num_blocks(config, machine);
    if (plan.num_blocks < config.cluster) continue;
    const int strips = round_strips(config, tile, num_tokens, plan.num_blocks);
    plan.args.num_strips = tile.num_strips();
    plan.args.num_groups = tile.num_groups();
    plan.args.num_tokens = num_tokens;
    plan.args.round_strips = strips;
    plan.args.layout = lay_out(config, tile, num_tokens, strips);
    if (plan.args.layout.bytes <= kMaxSharedBytes) return plan;
  }
  return std::nullopt;
}

void no_such_instance(const Int4GemmConfigValues& config) {
  throw runtime_failure(
      "no instance of the INT4 main loop for {} tiles, clusters of {}, {} groups a piece, {} "
      "stages, "
      "{} groups held",
      config.tiles, config.cluster, config.piece_groups, config.stages, config.held_groups);
}

void check_int4_operand(const void* x, std::int64_t row_stride, bool int4_weights) {
  FUT_CHECK(int4_weights, "on the GPU this op takes INT4 weights, {} are not", "others");
  FUT_CHECK(reinterpret_cast<std::uintptr_t>(x) % 8 == 0 && row_stride % 4 == 0,
            "x lies at {} with a row stride of {}: the GPU reads four numbers at a time", x,
            row_stride);
}

}  // namespace fut::cuda
