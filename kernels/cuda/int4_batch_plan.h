// How an INT4 projection of a batch is cut up (int4_batch_gemm.cuh): how many blocks, what each of them
// takes, and what lies where in shared memory. One table, read by launchers and by the kernel. Includes
// no CUDA header.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/layout/int4_tile.h"
#include "kernels/layout/k_segments.h"

namespace fut::cuda {

// Warpgroups of a block that multiply; one more feeds them. Five leave fewer registers to each.
inline constexpr int kManyBatchWarpgroups = 5;
inline constexpr int kFewBatchWarpgroups = 4;
inline constexpr int kMaxBatchStages = 8;
inline constexpr int kWarpgroupStrips = 4;  // one for each warp

// Groups of K of a stage of the ring.
[[nodiscard]] constexpr int batch_stage_groups(int tiles) {
  return tiles == 1 ? 2 : 1;
}

// The instances differ in the number of tokens, 8 to a tile, in the group size, and in how many warpgroups
// there can be.
template <int kTiles_, int kGroup_, int kWarpgroups_>
struct Int4BatchConfig {
  static constexpr int kTiles = kTiles_;
  static constexpr int kGroup = kGroup_;
  static constexpr int kThreads = 128 * (kWarpgroups_ + 1);
  // Of a thread that multiplies and of one that feeds; together what there is at the start, 80 or 96 for
  // all of them.
  static constexpr int kRegisters = kWarpgroups_ == kManyBatchWarpgroups ? 88 : 112;
  static constexpr int kFeederRegisters = kWarpgroups_ == kManyBatchWarpgroups ? 40 : 32;
  // 64 columns of operand A that there are registers for at a time.
  static constexpr int kTogether =
      kWarpgroups_ == kManyBatchWarpgroups || kTiles_ == 1 ? 1 : kGroup_ / 64;
  static constexpr int kStageGroups = batch_stage_groups(kTiles_);
  static constexpr int kPairs = 2 * kTiles;  // of outputs of a lane: rows g and g + 8 of one token
  static constexpr int kRecordBytes = layout::Int4Tile{16, kGroup_, kGroup_}.record_bytes();
  static constexpr int kBoxBytes = 8 * kTiles * 128;            // 64 columns of all tokens
  static constexpr int kTokenBytes = kGroup_ / 64 * kBoxBytes;  // of a group
  static constexpr int kBiasBytes = 4 * kTiles * 16;            // of a group
};

// Byte offsets in a block's shared memory.
struct Int4BatchLayout {
  int ring = 0;  // [stage]: tokens [group][columns / 64][token] as wgmma wants them, then records
                 // [strip][group]
  int stage_bytes = 0;  // a multiple of kInt4SwizzleBytes
  int barriers = 0;     // [stage] full, ready, empty
  int noticed = 0;      // int
  int factors = 0;      // float [token]
  int biases = 0;       // [stage][group][tile][lane t] float4
  int parked = 0;       // [level][warp][tile][lane] float4; later [warp][pair][lane] float2
  int inputs = 0;       // float [warp][pair that it finishes][lane][4], of the epilogue
  int bytes = 0;
};

struct Int4BatchArgs {
  const float* factors = nullptr;  // of each token, for its results; null: 1
  int num_strips = 0;
  int num_groups = 0;  // of a row
  int num_tokens = 0;
  int cluster = 1;     // blocks that share K: 1, 2, 4 or 8
  int warpgroups = 1;  // of a block that multiply
  int stages = 2;
  Int4BatchLayout layout;

  // Of a block.
  [[nodiscard]] constexpr int strips() const { return kWarpgroupStrips * warpgroups; }
  [[nodiscard]] constexpr int row_groups() const { return (num_strips + strips() - 1) / strips(); }
  [[nodiscard]] constexpr int segments() const { return layout::kNumKSegments / cluster; }
};

// Pairs of outputs that a block of a cluster finishes for a lane, and groups of lanes that a pair is
// divided among where there are fewer pairs than blocks.
[[nodiscard]] constexpr int batch_owned_pairs(int tiles, int cluster) {
  return 2 * tiles > cluster ? 2 * tiles / cluster : 1;
}
[[nodiscard]] constexpr int batch_lane_groups(int tiles, int cluster) {
  return cluster > 2 * tiles ? cluster / (2 * tiles) : 1;
}

struct Int4BatchPlan {
  int tiles = 1;
  int num_blocks = 0;
  Int4BatchArgs args;

  [[nodiscard]] constexpr int threads() const { return 128 * (args.warpgroups + 1); }
};

// One way to do it; nullopt where it does not fit. Blocks that share K take one run of rows each.
[[nodiscard]] std::optional<Int4BatchPlan> make_int4_batch_plan(int warpgroups, int cluster,
                                                                const layout::Int4Tile& tile,
                                                                int num_tokens, bool fetches,
                                                                const Int4GemmMachine& machine);

// The plan for 1 .. kMaxInt4Tokens tokens, of all the one that should be the fastest; fetches: the
// epilogue has inputs; most_warpgroups: of a block.
[[nodiscard]] Int4BatchPlan plan_int4_batch(const layout::Int4Tile& tile, int num_tokens,
                                            bool fetches, int most_warpgroups,
                                            const Int4GemmMachine& machine);

}  // namespace fut::cuda
