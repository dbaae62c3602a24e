// Sizes of the row product of 9 to 32 tokens (row_tile_gemm.cuh) and who does what: one table, read by the
// launcher, the kernel and tests. Includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/cuda/row_gemm_plan.h"
#include "kernels/layout/int4_row_order.h"
#include "kernels/layout/k_segments.h"
#include "kernels/layout/row_tile.h"

namespace fut::cuda {

inline constexpr int kFewestTileTokens = 9;  // fewer are the other row product's
inline constexpr int kRowTileConsumers = 4;  // warpgroups that multiply, four strips each
inline constexpr int kRowTileThreads = 128 * (kRowTileConsumers + 1);
inline constexpr int kRowTileStrips = 4 * kRowTileConsumers;  // of a block at a time
inline constexpr int kRowTileStageChunks = 2;                 // of columns
inline constexpr int kRowTileCluster = 2;                     // blocks that share tokens: 1 or 2
inline constexpr int kRowTileAlignment = 1024;                // of the swizzle

// Of a thread, once the warpgroups know what they are: of those who multiply, of the one that copies. What
// the block gets first, 96 for each thread, goes up in them.
inline constexpr int kRowTileConsumerRegisters = 112;
inline constexpr int kRowTileProducerRegisters = 32;
static_assert(kRowTileConsumers * kRowTileConsumerRegisters + kRowTileProducerRegisters <=
              (kRowTileConsumers + 1) * 96);

// For `tiles` times eight tokens.
[[nodiscard]] constexpr int row_tile_stage_bytes(int tiles) {
  return kRowTileStrips * layout::kRowTileStripBytes +
         kRowTileStageChunks * tiles * layout::kRowTileChunkBytes;
}
[[nodiscard]] constexpr int row_tile_stages(int tiles) {
  return tiles == 2 ? 5 : 4;
}
// Byte offsets in a block's shared memory: the ring, two sums put aside for each result that a thread has,
// barriers.
[[nodiscard]] constexpr int row_tile_sums_offset(int tiles) {
  return row_tile_stages(tiles) * row_tile_stage_bytes(tiles);
}
[[nodiscard]] constexpr int row_tile_barriers_offset(int tiles) {
  return row_tile_sums_offset(tiles) + 2 * 128 * kRowTileConsumers * tiles * 16;
}
[[nodiscard]] constexpr int row_tile_shared_bytes(int tiles) {
  return row_tile_barriers_offset(tiles) + 2 * 8 * row_tile_stages(tiles);
}
static_assert(row_tile_shared_bytes(2) <= kMaxSharedBytes &&
              row_tile_shared_bytes(4) <= kMaxSharedBytes);
static_assert(row_tile_stage_bytes(2) % kRowTileAlignment == 0 &&
              row_tile_stage_bytes(4) % kRowTileAlignment == 0);

// Strips of 16 rows.
struct RowTileStrips {
  int begin = 0;
  int end = 0;
  [[nodiscard]] constexpr int count() const { return end - begin; }
};

// The strips of a cluster, cut into as many tiles for each of its blocks, which differ by a strip at most.
struct RowTileRun {
  int begin = 0;
  int num_tiles = 0;  // of each block
  int least = 0;      // strips of a tile
  int num_larger = 0;

  constexpr RowTileRun(const RowTileStrips& strips, int cluster)
      : begin(strips.begin),
        num_tiles((strips.count() + kRowTileStrips * cluster - 1) / (kRowTileStrips * cluster)) {
    if (num_tiles == 0) return;
    least = strips.count() / (num_tiles * cluster);
    num_larger = strips.count() % (num_tiles * cluster);
  }

  // The first strip of tile `index`, counted over all blocks, and the one past its last.
  [[nodiscard]] constexpr RowTileStrips tile(int index) const {
    return {first_of(index), first_of(index + 1)};
  }

 private:
  [[nodiscard]] constexpr int first_of(int index) const {
    return begin + index * least + (index < num_larger ? index : num_larger);
  }
};

struct RowTileGemmArgs {
  layout::RowOrder order;  // which two rows meet in one thread
  int num_strips = 0;
  int num_chunks = 0;  // of 64 columns
  int num_tokens = 0;
  float scale_factor = 1;                  // of row scales: a power of two
  const float* row_scales = nullptr;       // [rows]
  const float* factors = nullptr;          // [token], 1 / rms; null where it is in the operands
  const std::uint8_t* operands = nullptr;  // tokens as layout/row_tile.h has them

  [[nodiscard]] constexpr int num_stages() const {  // of K
    return (num_chunks + kRowTileStageChunks - 1) / kRowTileStageChunks;
  }
  // Of cluster `index` of `clusters`, a contiguous run.
  [[nodiscard]] constexpr RowTileStrips strips_of(int index, int clusters) const {
    return {int4_share(num_strips, index, clusters), int4_share(num_strips, index + 1, clusters)};
  }
};

// Blocks for this many strips: what the chip runs at a time, no cluster without work. 0: it runs none.
[[nodiscard]] constexpr int row_tile_blocks(int num_strips, const Int4GemmMachine& machine) {
  const int clusters = kRowTileCluster == 2 ? machine.max_clusters_of_2
                                            : machine.num_multiprocessors / kRowTileCluster;
  return kRowTileCluster * (num_strips < clusters ? num_strips : clusters);
}

// Rows that a copy takes: of a strip whose halves lie apart, eight.
[[nodiscard]] constexpr int row_tile_box_rows(bool is_paired) {
  return is_paired ? layout::RowOrder::kHalfStrip : layout::kRowTileStripRows;
}

// Memory for prepared tokens: 1 / rms of each, then operands.
inline constexpr int kRowTileOperandsOffset = 1024;
[[nodiscard]] constexpr std::size_t row_tile_operand_bytes(int num_chunks) {
  return kRowTileOperandsOffset +
         static_cast<std::size_t>(num_chunks) * (kMaxRowTokens / 8) * layout::kRowTileChunkBytes;
}

namespace proof {

constexpr bool row_tile_tiles_cover(int num_strips, int clusters, int cluster) {
  RowTileGemmArgs args;
  args.num_strips = num_strips;
  int next = 0;
  for (int c = 0; c < clusters; ++c) {
    const RowTileStrips strips = args.strips_of(c, clusters);
    const RowTileRun run(strips, cluster);
    for (int index = 0; index < run.num_tiles * cluster; ++index) {
      const RowTileStrips tile = run.tile(index);
      if (tile.begin != next || tile.count() < 0 || tile.count() > kRowTileStrips) return false;
      next = tile.end;
    }
    if (next != strips.end) return false;
  }
  return next == num_strips;
}
static_assert(row_tile_tiles_cover(8016, 66, 2) && row_tile_tiles_cover(8016, 132, 1) &&
                  row_tile_tiles_cover(1, 1, 2) && row_tile_tiles_cover(67, 66, 2) &&
                  row_tile_tiles_cover(2113, 66, 2) && row_tile_tiles_cover(33, 1, 2),
              "every strip is one block's, no block has more than it can hold");

}  // namespace proof

}  // namespace fut::cuda
