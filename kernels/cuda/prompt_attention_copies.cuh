// The copying warp of attention of prompts: which tile comes next, where its queries, keys and values are,
// and their way into the rings by the tensor memory engine.
#pragma once

#include "kernels/cuda/prompt_attention_ring.cuh"
#include "kernels/cuda/ptx/tensor_copy.cuh"

namespace fut::cuda {

// Parameters of a kernel: that is where maps may lie.
struct PromptAttentionMaps {
  CUtensorMap q;
  CUtensorMap pages;  // rows of keys and values
  CUtensorMap k, v;   // of the step, where they are read directly
};

// Where the keys of a tile come from.
struct KeySource {
  int first_entry = 0;          // of the page table
  int first_direct = 0;         // position from which on keys are the step's own
  int token_of_position_0 = 0;  // were the whole sequence in the step
};

template <int kHeadDim>
class PromptAttentionCopies {
 public:
  using Rings = PromptAttentionRings<kHeadDim>;

  __device__ PromptAttentionCopies(const PromptAttentionMaps& maps, const PromptAttentionArgs& args,
                                   const Rings& rings, int lane)
      : maps_(maps), args_(args), rings_(rings), lane_(lane) {}

  // A whole warp.
  __device__ void produce() const {
    int index = static_cast<int>(blockIdx.x);
    int count = 0;  // key tiles so far
    for (std::uint32_t parity = 0;; parity ^= 1) {
      KeySource source;
      const AttentionTile tile = find_tile(index, source);
      if (tile.num_tokens == 0) {
        ptx::barrier_wait(rings_.queries_empty(), parity ^ 1);
        if (lane_ == 0) {
          rings_.tile() = tile;
          ptx::barrier_arrive(rings_.queries_full());
        }
        return;
      }
      int pages = pages_of_lane(tile, source, 0);
      KeyRows now = rows_of(tile, source, pages, 0);
      copy_part(kKeyRing, tile, now, count);
      ptx::barrier_wait(rings_.queries_empty(), parity ^ 1);
      if (lane_ == 0) copy_queries(tile);
      for (int j = 1; j < tile.num_key_tiles; ++j) {
        const KeyRows before = now;
        if (j % kTilesOfPages == 0) pages = pages_of_lane(tile, source, j);
        now = rows_of(tile, source, pages, j);
        copy_part(kKeyRing, tile, now, count + j);
        copy_part(kValueRing, tile, before, count + j - 1);
      }
      int next = 0;
      if (lane_ == 0) next = static_cast<int>(atomicAdd(args_.next_tile, 1U));
      count += tile.num_key_tiles;
      copy_part(kValueRing, tile, now, count - 1);
      index = static_cast<int>(gridDim.x) + __shfl_sync(kAllLanes, next, 0);
    }
  }

 private:
  using Shared = PromptAttentionShared<kHeadDim>;
  static constexpr unsigned kAllLanes = 0xFFFFFFFFU;
  static constexpr int kKeyRing = Rings::kKeyRing;
  static constexpr int kValueRing = Rings::kValueRing;
  static constexpr int kPagesOfTile = kTileKeys / layout::kPageTokens;
  static constexpr int kTilesOfPages = 32 / kPagesOfTile;  // whose pages a warp holds

  // Tiles count up sequence by sequence, in it KV head by KV head, and of a head those of later tokens,
  // which see more keys, come first. All lanes look, for 32 sequences at a time.
  __device__ AttentionTile find_tile(int index, KeySource& source) const {
    const RaggedBatch& batch = args_.batch;
    for (int first = 0; first < batch.num_sequences; first += 32) {
      const int s = first + lane_;
      const int tokens = s < batch.num_sequences ? batch.q_indptr[s + 1] - batch.q_indptr[s] : 0;
      const int tiles =
          (tokens + args_.tokens_per_tile - 1) / args_.tokens_per_tile * args_.page.num_kv_heads;
      int end = tiles;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(kAllLanes, end, distance);
        if (lane_ >= distance) end += other;
      }
      const unsigned behind = __ballot_sync(kAllLanes, index < end);
      if (behind == 0) {
        index -= __shfl_sync(kAllLanes, end, 31);
        continue;
      }
      const int owner = __ffs(static_cast<int>(behind)) - 1;
      index -= __shfl_sync(kAllLanes, end - tiles, owner);
      return tile_of(first + owner, __shfl_sync(kAllLanes, tokens, owner), index, source);
    }
    // A block asks for another tile once for each that it had: this is the last of all to ask.
    if (index == static_cast<int>(gridDim.x) - 1 && lane_ == 0) *args_.next_tile = 0;
    return {};
  }

  __device__ AttentionTile tile_of(int s, int tokens, int index, KeySource& source) const {
    const RaggedBatch& batch = args_.batch;
    const int tiles = (tokens + args_.tokens_per_tile - 1) / args_.tokens_per_tile;
    const int first = (tiles - 1 - index % tiles) * args_.tokens_per_tile;
    const int first_of_sequence = batch.q_indptr[s];
    AttentionTile tile;
    tile.kv_length = batch.kv_lengths[s];
    const int begin = tile.kv_length - tokens;
    tile.num_tokens = min(args_.tokens_per_tile, tokens - first);
    tile.first_token = first_of_sequence + first;
    tile.first_position = begin + first;
    tile.kv_head = index / tiles;
    tile.num_key_tiles = (tile.first_position + tile.num_tokens + kTileKeys - 1) / kTileKeys;
    source.first_entry = batch.kv_indptr[s];
    source.first_direct = args_.direct ? begin : tile.kv_length;
    source.token_of_position_0 = first_of_sequence - begin;
    return tile;
  }

  // Rows of keys of one tile, in blocks of a page.
  struct KeyRows {
    int row[kPagesOfTile];  // of keys in pages; of k and v
    int blocks;             // that are looked at
    bool direct;
  };

  // Lane i holds page i from tile j's first page on.
  __device__ int pages_of_lane(const AttentionTile& tile, const KeySource& source, int j) const {
    const int i = j * kPagesOfTile + lane_;
    const int entry = source.first_entry + i;
    if (!args_.listed || i * layout::kPageTokens >= tile.kv_length) return entry;
    return args_.batch.page_table[entry];
  }

  __device__ KeyRows rows_of(const AttentionTile& tile, const KeySource& source, int pages,
                             int j) const {
    const int first = j * kTileKeys;
    KeyRows rows;
    rows.direct = first >= source.first_direct;
    rows.blocks =
        min(kPagesOfTile, (tile.kv_length - first + layout::kPageTokens - 1) / layout::kPageTokens);
#pragma unroll
    for (int b = 0; b < kPagesOfTile; ++b) {
      const int page = __shfl_sync(kAllLanes, pages, j % kTilesOfPages * kPagesOfTile + b);
      rows.row[b] = rows.direct ? source.token_of_position_0 + first + b * layout::kPageTokens
                                : static_cast<int>((page * args_.page.elements() +
                                                    args_.page.k_offset(tile.kv_head, 0)) /
                                                   kHeadDim);
    }
    return rows;
  }

  // Keys or values of a tile, the `number`-th of all.
  __device__ void copy_part(int ring, const AttentionTile& tile, const KeyRows& rows,
                            int number) const {
    constexpr int kBlockBytes = layout::kPageTokens * 128;  // of a strip
    ptx::barrier_wait(rings_.empty(ring, number), rings_.parity_of(number) ^ 1);
    if (lane_ != 0) return;
    const std::uint32_t barrier = rings_.full(ring, number);
    ptx::barrier_expect(barrier,
                        static_cast<std::uint32_t>(rows.blocks * Shared::kStrips * kBlockBytes));
    const int values =
        static_cast<int>((args_.page.v_offset(0, 0) - args_.page.k_offset(0, 0)) / kHeadDim);
    for (int b = 0; b < rows.blocks; ++b) {
      const int row = b == 0 ? rows.row[0] : rows.row[1];
      for (int strip = 0; strip < Shared::kStrips; ++strip) {
        const std::uint32_t place =
            rings_.at(ring, number) + strip * Shared::kStripBytes + b * kBlockBytes;
        if (rows.direct) {
          ptx::copy_box(place, ring == kKeyRing ? maps_.k : maps_.v, barrier,
                        tile.kv_head * kHeadDim + 64 * strip, row);
        } else {
          ptx::copy_box(place, maps_.pages, barrier, 64 * strip,
                        row + (ring == kKeyRing ? 0 : values));
        }
      }
    }
  }

  // Queries of a tile, and the tile itself. Rows of tokens that are not the tile's come along.
  __device__ void copy_queries(const AttentionTile& tile) const {
    rings_.tile() = tile;
    const int rows = args_.tokens_per_tile * args_.heads;
    ptx::barrier_expect(rings_.queries_full(),
                        static_cast<std::uint32_t>(rows * 128 * Shared::kStrips));
    for (int strip = 0; strip < Shared::kStrips; ++strip) {
      ptx::copy_box_3(rings_.queries() + strip * Shared::kStripBytes, maps_.q,
                      rings_.queries_full(), 64 * strip, tile.kv_head * args_.heads,
                      tile.first_token);
    }
  }

  const PromptAttentionMaps& maps_;
  const PromptAttentionArgs& args_;
  Rings rings_;
  int lane_;
};

}  // namespace fut::cuda
