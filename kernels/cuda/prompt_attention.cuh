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
//
// What was tried, and in vain: README.md, "Attention of prompts".
#pragma once

#include "kernels/cuda/prompt_attention_copies.cuh"
#include "kernels/cuda/prompt_softmax.cuh"
#include "kernels/cuda/ptx/attention_wgmma.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/warp.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace fut::cuda {

// The multiplying warpgroups.
template <int kHeadDim>
class PromptAttention {
 public:
  using Rings = PromptAttentionRings<kHeadDim>;

  __device__ PromptAttention(const PromptAttentionArgs& args, const Rings& rings, int lane)
      : args_(args), rings_(rings), lane_(lane) {}

  // A whole warpgroup, number 0 or 1.
  __device__ void consume(int group) const {
    if (group == 1) ptx::arrive_at(turn_of(0), kTurnThreads);
    int count = 0;
    for (std::uint32_t parity = 0;; parity ^= 1) {
      ptx::barrier_wait(rings_.queries_full(), parity);
      const AttentionTile tile = rings_.tile();
      if (tile.num_tokens == 0) break;
      attend(tile, group, count);
      count += tile.num_key_tiles;
    }
    if (group == 0) ptx::meet_at(turn_of(0), kTurnThreads);  // which the other one has left behind
  }

 private:
  using Shared = PromptAttentionShared<kHeadDim>;
  static constexpr unsigned kAllLanes = 0xFFFFFFFFU;
  static constexpr int kTurnThreads = 128 * kQueryGroups;
  static constexpr int kKeyRing = Rings::kKeyRing;
  static constexpr int kValueRing = Rings::kValueRing;

  // The barrier at which a warpgroup waits for its turn, and the one where it meets itself.
  [[nodiscard]] __device__ static int turn_of(int group) { return 1 + group; }
  [[nodiscard]] __device__ static int own_barrier(int group) { return 1 + kQueryGroups + group; }

  // This warp has done with what lies there.
  __device__ __forceinline__ void release(std::uint32_t barrier) const {
    if (lane_ == 0) ptx::barrier_arrive(barrier);
    __syncwarp();
  }
  // And with the queries, which only scores ask for, and the tile, which each lane has read by itself: each
  // says so, once a tile.
  __device__ __forceinline__ void release_keys(int number, bool is_last) const {
    if (lane_ == 0) ptx::barrier_arrive(rings_.empty(kKeyRing, number));
    ptx::barrier_arrive_if(rings_.queries_empty(), is_last);
    __syncwarp();
  }

  // Asks for scores of this warpgroup's queries and the first kKeys keys.
  template <int kKeys>
  __device__ __forceinline__ void multiply_keys(float (&scores)[kScores], int group,
                                                int number) const {
    constexpr std::uint64_t kStrip = Shared::kStripBytes >> 4;
    const std::uint64_t queries = ptx::wgmma_descriptor(rings_.queries() + group * (64 * 128));
    const std::uint64_t keys = ptx::wgmma_descriptor(rings_.at(kKeyRing, number));
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
        ptx::wgmma_rows_descriptor(rings_.at(kValueRing, number), Shared::kStripBytes);
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
    ptx::barrier_wait(rings_.full(kValueRing, number), rings_.parity_of(number));
  }

  // Scores and probabilities of key tile j, values of the one before, which are there already.
  template <bool kMasked, int kKeys>
  __device__ __forceinline__ void step(Registers& own, int group, int j, int count, int end) const {
    const int number = count + j;
    ptx::barrier_wait(rings_.full(kKeyRing, number), rings_.parity_of(number));
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
    release(rings_.empty(kValueRing, number - 1));
    round_probabilities<kKeys>(own.scores, own.probabilities);
    scale_sums(own.sums, factors);
  }

  // The first key tile, with nothing to run beside.
  __device__ __forceinline__ void begin(Registers& own, int group, int count, bool is_masked,
                                        bool is_last) const {
    ptx::barrier_wait(rings_.full(kKeyRing, count), rings_.parity_of(count));
    ptx::hold_registers(own.scores);
    ptx::hold_registers(own.sums);
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
          rings_.at(kValueRing, number) + strip * Shared::kStripBytes + row * 128 + i % 8 * 16,
          uint4{});
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
    release(rings_.empty(kValueRing, last));
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

  const PromptAttentionArgs& args_;
  Rings rings_;
  int lane_;
};

template <int kHeadDim>
__global__ void __launch_bounds__(kPromptAttentionThreads, 1)
    prompt_attention_kernel(const __grid_constant__ PromptAttentionMaps maps,
                            const __grid_constant__ PromptAttentionArgs args) {
  extern __shared__ __align__(1024) std::uint8_t prompt_attention_shared[];
  // Once: with two of them ptxas 13.0 serialises the products of heads of 64 dims (C7511).
  const int lane = ptx::lane();
  const PromptAttentionRings<kHeadDim> rings(prompt_attention_shared);
  const PromptAttentionCopies<kHeadDim> copies(maps, args, rings, lane);
  const PromptAttention<kHeadDim> attention(args, rings, lane);
  // As ptx::warp_index(), whose division without a sign serialises the products as well.
  const int warp = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    ptx::prefetch_map(maps.q);
    ptx::prefetch_map(maps.pages);
    rings.init_barriers();
  }
  __syncthreads();
  ptx::take_turn();
  if (warp < 4) {
    ptx::give_registers<40>();
    if (warp == 0) copies.produce();
  } else {
    ptx::take_registers<232>();
    attention.consume(warp / 4 - 1);
  }
}

}  // namespace fut::cuda
