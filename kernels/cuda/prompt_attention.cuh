// Attention of prompts on the tensor cores of warpgroups: a block takes tile after tile of 128 rows (tokens
// times the heads that share a KV head) over their keys, 128 at a time from the first to the last, with a
// softmax that goes along.
//
// copies   One warp fetches queries, and keys and values into two rings, by the tensor memory engine: from
//          pages of numbers, or (keys of the step) from k and v as they lie.
// overlap  Two warpgroups of 64 rows take turns: while one of them has its products under way the other
//          does its softmax. And each asks for the scores of the next keys before the values of these.
// sums     Ascending, 128 keys after 128 from multiples of 128 on, and a row's own position decides which
//          count: its bits do not depend on its tile, nor on whatever else is in the step.
// bound    arithmetic
#pragma once

#include "kernels/cuda/prompt_softmax.cuh"
#include "kernels/cuda/ptx/attention_wgmma.cuh"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/tensor_copy.cuh"
#include "kernels/cuda/ptx/warp.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace fut::cuda {

// Parameters of a kernel: that is where maps may lie.
struct PromptAttentionMaps {
  CUtensorMap q;
  CUtensorMap pages;  // rows of keys and values
  CUtensorMap k, v;   // of the step, where they are read directly
};

// Consecutive tokens of one sequence with the heads of one KV head.
struct AttentionTile {
  int num_tokens = 0;  // 0: there is no tile left
  int first_token = 0;
  int first_position = 0;
  int kv_head = 0;
  int kv_length = 0;
  int num_key_tiles = 0;
};

// Where its keys come from.
struct KeySource {
  int first_entry = 0;          // of the page table
  int first_direct = 0;         // position from which on keys are the step's own
  int token_of_position_0 = 0;  // were the whole sequence in the step
};

// In shared memory: queries, rings of keys and of values, barriers, the tile at hand. Numbers of a head come
// in strips of 64 dims, 128 bytes a row.
template <int kHeadDim>
struct PromptAttentionShared {
  static constexpr int kStrips = kHeadDim / 64;
  static constexpr int kStages = kHeadDim == 128 ? 3 : 4;  // of either ring
  static constexpr int kStripBytes = kTileKeys * 128;
  static constexpr int kStageBytes = kStrips * kStripBytes;  // of keys, of values and of queries
  static constexpr int kKeys = kStageBytes;
  static constexpr int kValues = kKeys + kStages * kStageBytes;
  static constexpr int kBarriers = kValues + kStages * kStageBytes;
  static constexpr int kTile = kBarriers + 8 * (2 + 4 * kStages);
  static constexpr int kBytes = kTile + static_cast<int>(sizeof(AttentionTile));
  static constexpr int kAlignment = 1024;  // of the swizzle
  static constexpr int kDynamicBytes = kBytes + kAlignment;
  static_assert(kTileQueries == kTileKeys && kDynamicBytes <= 226 * 1024);
};

template <int kHeadDim>
class PromptAttention {
 public:
  __device__ PromptAttention(const PromptAttentionMaps& maps, const PromptAttentionArgs& args,
                             std::uint8_t* shared)
      : maps_(maps), args_(args), lane_(ptx::lane()) {
    const std::uint32_t over = ptx::shared_address(shared) % Shared::kAlignment;
    if (over != 0) shared += Shared::kAlignment - over;
    base_ = ptx::shared_address(shared);
    tile_ = reinterpret_cast<AttentionTile*>(shared + Shared::kTile);
  }

  // By one thread, before anybody uses them.
  __device__ void init_barriers() const {
    ptx::barrier_init(queries_full(), 1);
    ptx::barrier_init(queries_empty(), kConsumerWarps);
    for (int stage = 0; stage < kStages; ++stage) {
      for (const int ring : {kKeyRing, kValueRing}) {
        ptx::barrier_init(full(ring, stage), 1);
        ptx::barrier_init(empty(ring, stage), kConsumerWarps);
      }
    }
    ptx::barrier_init_fence();
  }

  // A whole warp.
  __device__ void produce() const {
    int index = static_cast<int>(blockIdx.x);
    int count = 0;  // key tiles so far
    for (std::uint32_t parity = 0;; parity ^= 1) {
      KeySource source;
      const AttentionTile tile = find_tile(index, source);
      if (tile.num_tokens == 0) {
        ptx::barrier_wait(queries_empty(), parity ^ 1);
        if (lane_ == 0) {
          *tile_ = tile;
          ptx::barrier_arrive(queries_full());
        }
        return;
      }
      int pages = pages_of_lane(tile, source, 0);
      KeyRows now = rows_of(tile, source, pages, 0);
      copy_part(kKeyRing, tile, now, count);
      ptx::barrier_wait(queries_empty(), parity ^ 1);
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

  // A whole warpgroup, number 0 or 1.
  __device__ void consume(int group) const {
    if (group == 1) ptx::arrive_at(turn_of(0), kTurnThreads);
    int count = 0;
    for (std::uint32_t parity = 0;; parity ^= 1) {
      ptx::barrier_wait(queries_full(), parity);
      const AttentionTile tile = *tile_;
      if (tile.num_tokens == 0) break;
      attend(tile, group, count);
      count += tile.num_key_tiles;
    }
    if (group == 0) ptx::meet_at(turn_of(0), kTurnThreads);  // which the other one has left behind
  }

 private:
  using Shared = PromptAttentionShared<kHeadDim>;
  static constexpr unsigned kAllLanes = 0xFFFFFFFFU;
  static constexpr int kStages = Shared::kStages;
  static constexpr int kConsumerWarps = 4 * kQueryGroups;
  static constexpr int kTurnThreads = 128 * kQueryGroups;
  static constexpr int kKeyRing = 0;
  static constexpr int kValueRing = 1;
  static constexpr int kPagesOfTile = kTileKeys / layout::kPageTokens;
  static constexpr int kTilesOfPages = 32 / kPagesOfTile;  // whose pages a warp holds

  [[nodiscard]] __device__ std::uint32_t at(int ring, int number) const {
    return base_ + (ring == kKeyRing ? Shared::kKeys : Shared::kValues) +
           number % kStages * Shared::kStageBytes;
  }
  [[nodiscard]] __device__ std::uint32_t queries_full() const { return base_ + Shared::kBarriers; }
  [[nodiscard]] __device__ std::uint32_t queries_empty() const { return queries_full() + 8; }
  [[nodiscard]] __device__ std::uint32_t full(int ring, int number) const {
    return queries_full() + 16 + 8 * (ring * kStages + number % kStages);
  }
  [[nodiscard]] __device__ std::uint32_t empty(int ring, int number) const {
    return full(ring, number) + 8 * 2 * kStages;
  }
  [[nodiscard]] __device__ static std::uint32_t parity_of(int number) {
    return static_cast<std::uint32_t>(number / kStages) & 1U;
  }
  // The barrier at which a warpgroup waits for its turn, and the one where it meets itself.
  [[nodiscard]] __device__ static int turn_of(int group) { return 1 + group; }
  [[nodiscard]] __device__ static int own_barrier(int group) { return 1 + kQueryGroups + group; }

  // ---- copies ------------------------------------------------------------------------------------

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
    ptx::barrier_wait(empty(ring, number), parity_of(number) ^ 1);
    if (lane_ != 0) return;
    const std::uint32_t barrier = full(ring, number);
    ptx::barrier_expect(barrier,
                        static_cast<std::uint32_t>(rows.blocks * Shared::kStrips * kBlockBytes));
    const int values =
        static_cast<int>((args_.page.v_offset(0, 0) - args_.page.k_offset(0, 0)) / kHeadDim);
    for (int b = 0; b < rows.blocks; ++b) {
      const int row = b == 0 ? rows.row[0] : rows.row[1];
      for (int strip = 0; strip < Shared::kStrips; ++strip) {
        const std::uint32_t place =
            at(ring, number) + strip * Shared::kStripBytes + b * kBlockBytes;
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
    *tile_ = tile;
    const int rows = args_.tokens_per_tile * args_.heads;
    ptx::barrier_expect(queries_full(), static_cast<std::uint32_t>(rows * 128 * Shared::kStrips));
    for (int strip = 0; strip < Shared::kStrips; ++strip) {
      ptx::copy_box_3(base_ + strip * Shared::kStripBytes, maps_.q, queries_full(), 64 * strip,
                      tile.kv_head * args_.heads, tile.first_token);
    }
  }

  // ---- products ----------------------------------------------------------------------------------

  // This warp has done with what lies there.
  __device__ __forceinline__ void release(std::uint32_t barrier) const {
    if (lane_ == 0) ptx::barrier_arrive(barrier);
    __syncwarp();
  }
  // And with the queries, which only scores ask for.
  __device__ __forceinline__ void release_keys(int number, bool is_last) const {
    if (lane_ == 0) ptx::barrier_arrive(empty(kKeyRing, number));
    if (lane_ == 0 && is_last) ptx::barrier_arrive(queries_empty());
    __syncwarp();
  }

  // Asks for scores of this warpgroup's queries and the first kKeys keys.
  template <int kKeys>
  __device__ __forceinline__ void multiply_keys(float (&scores)[kScores], int group,
                                                int number) const {
    constexpr std::uint64_t kStrip = Shared::kStripBytes >> 4;
    const std::uint64_t queries = ptx::wgmma_descriptor(base_ + group * (64 * 128));
    const std::uint64_t keys = ptx::wgmma_descriptor(at(kKeyRing, number));
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const std::uint64_t step = k / 4 * kStrip + k % 4 * 2;
      ptx::wgmma(ptx::Bf16Operands{}, reinterpret_cast<float(&)[kKeys / 2]>(scores), queries + step,
                 keys + step, k > 0 ? 1 : 0);
    }
    ptx::wgmma_commit();
  }

  // Adds probabilities times values of the first kKeys keys.
  template <int kKeys>
  __device__ __forceinline__ void multiply_values(
      float (&sums)[kHeadDim / 2], const std::uint32_t (&probabilities)[kTileKeys / 16][4],
      int number) const {
    const std::uint64_t values =
        ptx::wgmma_rows_descriptor(at(kValueRing, number), Shared::kStripBytes);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      ptx::wgmma_rows(sums, probabilities[k], values + k * ptx::kSixteenRows);
    }
    ptx::wgmma_commit();
  }

  // What a thread has of its two rows.
  struct Registers {
    float scores[kScores];
    std::uint32_t probabilities[kTileKeys / 16][4];
    float sums[kHeadDim / 2];
    RunningRows rows;
    int last[2];  // of each row the position that it sees last, less 2t
  };

  template <int kKeys>
  __device__ __forceinline__ void mask(Registers& own, int j) const {
    const int last[2] = {own.last[0] - j * kTileKeys, own.last[1] - j * kTileKeys};
    mask_scores<kKeys>(own.scores, last);
  }

  // Stands between a softmax and the wait for products: ptxas moves no instruction across a loop, but any
  // number of them behind a wait, where they would no longer run beside the products.
  __device__ __forceinline__ void wait_for_values(int number) const {
    ptx::barrier_wait(full(kValueRing, number), parity_of(number));
  }

  // Scores and probabilities of key tile j, values of the one before, which are there already.
  template <bool kMasked, int kKeys>
  __device__ __forceinline__ void step(Registers& own, int group, int j, int count, int end) const {
    const int number = count + j;
    ptx::barrier_wait(full(kKeyRing, number), parity_of(number));
    ptx::meet_at(turn_of(group), kTurnThreads);
    ptx::hold_registers(own.scores);
    ptx::hold_registers(own.probabilities);
    ptx::hold_registers(own.sums);
    ptx::wgmma_fence();
    multiply_keys<kKeys>(own.scores, group, number);
    multiply_values<kTileKeys>(own.sums, own.probabilities, number - 1);
    ptx::arrive_at(turn_of(group ^ 1), kTurnThreads);
    ptx::wgmma_wait<1>();
    ptx::hold_registers(own.scores);
    release_keys(number, j == end - 1);
    if constexpr (kMasked) mask<kKeys>(own, j);
    float factors[2];
    softmax_step<kKeys>(own.scores, args_.scale, own.rows, factors);
    ptx::hold_registers(own.scores);
    wait_for_values(number);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(own.probabilities);  // ptxas 13.0 may else reuse them while they are read
    ptx::hold_registers(own.sums);
    release(empty(kValueRing, number - 1));
    round_probabilities<kKeys>(own.scores, own.probabilities);
    scale_sums(own.sums, factors);
  }

  // The first key tile, with nothing to run beside.
  __device__ __forceinline__ void begin(Registers& own, int group, int count, bool is_masked,
                                        bool is_last) const {
    ptx::barrier_wait(full(kKeyRing, count), parity_of(count));
    ptx::wgmma_fence();
    multiply_keys<kTileKeys>(own.scores, group, count);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(own.scores);
    release_keys(count, is_last);
    if (is_masked) mask<kTileKeys>(own, 0);
    float factors[2];  // of sums that are zeros
    softmax_step<kTileKeys>(own.scores, args_.scale, own.rows, factors);
    round_probabilities<kTileKeys>(own.scores, own.probabilities);
    wait_for_values(count);
  }

  // Values of the last key tile.
  template <int kKeys>
  __device__ __forceinline__ void end_with(Registers& own, int number) const {
    ptx::hold_registers(own.probabilities);
    ptx::hold_registers(own.sums);
    ptx::wgmma_fence();
    multiply_values<kKeys>(own.sums, own.probabilities, number);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(own.probabilities);
    ptx::hold_registers(own.sums);
  }

  // Rows of values behind the sequence's end hold anything, and nothing times that may be a NaN.
  __device__ __forceinline__ void clear_values(int group, int number, int first_row,
                                               int end_row) const {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    for (int i = thread; i < Shared::kStrips * (end_row - first_row) * 8; i += 128) {
      const int row = first_row + i / 8 / Shared::kStrips;
      const int strip = i / 8 % Shared::kStrips;
      ptx::store_shared_16(
          at(kValueRing, number) + strip * Shared::kStripBytes + row * 128 + i % 8 * 16, uint4{});
    }
    ptx::fence_async_proxy();
    ptx::meet_at(own_barrier(group), 128);
  }

  // One tile; `count` key tiles came before. Where nobody looks at the second half of the last key tile, it
  // is left out, which changes no bit: it would add zeros.
  __device__ __forceinline__ void attend(const AttentionTile& tile, int group, int count) const {
    const int first_row = 64 * group + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane_ / 4;
    Registers own;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      own.last[r] = tile.first_position + (first_row + 8 * r) / args_.heads - 2 * (lane_ % 4);
    }
#pragma unroll
    for (float& sum : own.sums) sum = 0;
    const int seen_by_all = (tile.first_position + 1) / kTileKeys;
    const int end = tile.num_key_tiles;
    const int first_of_last = (end - 1) * kTileKeys;
    const bool is_half = tile.first_position + tile.num_tokens <= first_of_last + kTileKeys / 2;
    begin(own, group, count, seen_by_all == 0, end == 1);
    int j = 1;
    for (; j < seen_by_all; ++j) step<false, kTileKeys>(own, group, j, count, end);
    for (; j < (is_half ? end - 1 : end); ++j) step<true, kTileKeys>(own, group, j, count, end);
    if (j < end) step<true, kTileKeys / 2>(own, group, j, count, end);
    const int last = count + end - 1;
    const int end_row = is_half ? kTileKeys / 2 : kTileKeys;
    if (first_of_last + end_row > tile.kv_length) {
      clear_values(group, last, tile.kv_length - first_of_last, end_row);
    }
    if (is_half) {
      end_with<kTileKeys / 2>(own, last);
    } else {
      end_with<kTileKeys>(own, last);
    }
    release(empty(kValueRing, last));
    finish(own, tile, first_row);
  }

  __device__ __forceinline__ void finish(const Registers& own, const AttentionTile& tile,
                                         int first_row) const {
    unsigned clipped = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = own.rows.sum[r];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      const int row = first_row + 8 * r;
      const ResultRow result(args_, tile.first_token + row / args_.heads,
                             tile.kv_head * args_.heads + row % args_.heads, tile.kv_head,
                             row < tile.num_tokens * args_.heads);
      clipped += result.store(own.sums, r, Divisor(sum));
    }
    if (args_.out_scales == nullptr) return;
    clipped = __reduce_add_sync(kAllLanes, clipped);
    if (lane_ == 0 && clipped > 0) atomicAdd(args_.saturated, clipped);
  }

  const PromptAttentionMaps& maps_;
  const PromptAttentionArgs& args_;
  int lane_;
  std::uint32_t base_ = 0;
  AttentionTile* tile_ = nullptr;
};

template <int kHeadDim>
__global__ void __launch_bounds__(kPromptAttentionThreads, 1)
    prompt_attention_kernel(const __grid_constant__ PromptAttentionMaps maps,
                            const __grid_constant__ PromptAttentionArgs args) {
  extern __shared__ __align__(1024) std::uint8_t prompt_attention_shared[];
  const PromptAttention<kHeadDim> attention(maps, args, prompt_attention_shared);
  // The same for all lanes of a warp, so that the compiler knows it.
  const int warp = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    ptx::prefetch_map(maps.q);
    ptx::prefetch_map(maps.pages);
    attention.init_barriers();
  }
  __syncthreads();
  ptx::take_turn();
  if (warp < 4) {
    ptx::give_registers<40>();
    if (warp == 0) attention.produce();
  } else {
    ptx::take_registers<232>();
    attention.consume(warp / 4 - 1);
  }
}

}  // namespace fut::cuda
