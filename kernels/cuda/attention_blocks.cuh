// A warp's attention to blocks of 16 keys, of all query heads of a KV head at once: codes of an INT4
// page, or rows of BF16 in shared memory.
//
//   scores  S^T [16 tokens x 8 heads] = K Q^T      values  O^T [D x 8 heads] += V^T P^T
//
// Codes go to the tensor cores as they are: a nibble in bits 0 .. 3 of an FP16 is a subnormal number,
// u * 2^-24, and one in bits 4 .. 7 is u * 2^-20; products with them are exact, and the power of two,
// which belongs to a row of the tile (layout/int4_tile.h: rows g, rows g + 8), is taken out of the sum.
//
// Precision. q times the codes is FP16(q * 2^e) with 2^13 <= max |q| * 2^e < 2^14 for the head: exact
// for all |q| >= 2^-31 max |q|, and what lies below moves a score by less than 2^-30 of the bound's
// first term, max |q| times the largest code. 2^x in place of e^x, and the two roundings that come with
// it, are 2^-22 of a probability; rounding it to FP16 or BF16 is 2^-11 or 2^-8.
#pragma once

#include "kernels/cuda/attention_ring.cuh"
#include "kernels/cuda/attention_state.cuh"
#include "kernels/cuda/ptx/async_copy.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/int4_mma.cuh"
#include "kernels/cuda/ptx/matrix_fragments.cuh"
#include "kernels/cuda/ptx/warp.cuh"

namespace fut::cuda {

inline constexpr float kLowRows = 0x1p-24F;  // what the sums of rows g are too small by
inline constexpr float kHighRows = 0x1p-20F;

// The query heads as a warp holds them.
template <int D, int kGroups>
struct AttentionQueries {
  static constexpr int kTiles = D / 16;
  static constexpr int kMinima = kGroups > 0 ? kGroups : 1;
  std::uint32_t f16[kTiles][2];  // operand B; with codes alone
  float factors[2];              // of sums over codes of rows g, scale apart
  float minimum_factors[kMinima][2];
  std::uint32_t bf16;  // shared address of the rows
  float score_scale;
};

// Operand B of two tiles of 16 dims, out of rows of heads.
template <int D>
__device__ __forceinline__ void load_query_tiles(std::uint32_t (&b)[4], std::uint32_t rows,
                                                 int tile) {
  const int lane = ptx::lane();
  ptx::load_matrices(b,
                     rows + lane % 8 * AttentionLayout::row_bytes(D) + 32 * tile + lane / 8 * 16);
}

// Adds probabilities to the sums: scores become probabilities.
template <class State>
__device__ __forceinline__ void take_probabilities(State& state, float (&scores)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    scores[i] = ptx::exp2_fast(scores[i] - state.maxima[i % 2]);
    state.sums[i % 2] += scores[i];
  }
}

// ---- raw rows ----------------------------------------------------------------------------------

// Keys and values of the first `count` of 16 tokens, [key | value][16] rows at shared address
// `block`; rows past them must be finite.
template <int D, int kGroups>
__device__ __forceinline__ void attend_to_rows(AttentionState<D, kGroups>& state,
                                               const AttentionQueries<D, kGroups>& queries,
                                               std::uint32_t block, int count) {
  constexpr int kRow = AttentionLayout::row_bytes(D);
  const int lane = ptx::lane();
  float chains[2][4] = {};
  const std::uint32_t keys = block + (lane % 8 + lane / 8 % 2 * 8) * kRow + lane / 16 * 16;
#pragma unroll
  for (int j = 0; j < D / 16; j += 2) {
    std::uint32_t q[4], a[4];
    load_query_tiles<D>(q, queries.bf16, j);
    ptx::load_matrices(a, keys + 32 * j);
    ptx::mma_bf16_m16n8k16(chains[0], a, q[0], q[1]);
    ptx::load_matrices(a, keys + 32 * j + 32);
    ptx::mma_bf16_m16n8k16(chains[1], a, q[2], q[3]);
  }
  float scores[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = lane / 4 + i / 2 * 8;
    scores[i] = token < count ? (chains[0][i] + chains[1][i]) * queries.score_scale : -INFINITY;
  }
  state.raise_maxima(fmaxf(scores[0], scores[2]), fmaxf(scores[1], scores[3]));
  take_probabilities(state, scores);
  const std::uint32_t b0 = ptx::transposed(ptx::bf16x2(scores[0], scores[1]));
  const std::uint32_t b1 = ptx::transposed(ptx::bf16x2(scores[2], scores[3]));
  const std::uint32_t values = block + (16 + lane % 8 + lane / 16 * 8) * kRow + lane / 8 % 2 * 16;
#pragma unroll
  for (int j = 0; j < D / 16; ++j) {
    std::uint32_t a[4];
    ptx::load_matrices_transposed(a, values + 32 * j);
    if constexpr (kGroups > 0) {
      float sums[4] = {};
      ptx::mma_bf16_m16n8k16(sums, a, b0, b1);
#pragma unroll
      for (int i = 0; i < 4; ++i) state.values[j][i] += sums[i] * (i < 2 ? kLowRows : kHighRows);
    } else {
      ptx::mma_bf16_m16n8k16(state.values[j], a, b0, b1);
    }
  }
}

// ---- codes -------------------------------------------------------------------------------------

// What a lane needs of a block of 16 coded tokens: its words, tile after tile, and the parameters of
// tokens g and g + 8. Read from a slot of the ring all at once, so that the slot is free again.
template <int D, int kGroups>
struct CodedBlock {
  std::uint32_t keys[D / 16], values[D / 16];
  std::uint32_t key_params[2][kGroups], value_params[2][kGroups];

  __device__ __forceinline__ void load(std::uint32_t slot, int lane) {
    using Slot = CodedSlot<D, kGroups>;
    load_words(keys, slot + 16 * lane);
    const std::uint32_t params = slot + 2 * Slot::kCodeBytes + lane / 4 * (4 * kGroups);
    load_params(key_params, params);
    load_words(values, slot + Slot::kCodeBytes + 16 * lane);
    load_params(value_params, params + Slot::kParamBytes);
  }

 private:
  __device__ static __forceinline__ void load_words(std::uint32_t (&words)[D / 16],
                                                    std::uint32_t address) {
#pragma unroll
    for (int i = 0; i < D / 16; i += 4) {
      const uint4 v = ptx::load_shared_16(address + i / 4 * layout::Int4Tile::kBlockBytes);
      words[i] = v.x;
      words[i + 1] = v.y;
      words[i + 2] = v.z;
      words[i + 3] = v.w;
    }
  }
  __device__ static __forceinline__ void load_params(std::uint32_t (&params)[2][kGroups],
                                                     std::uint32_t address) {
    ptx::load_shared_words<kGroups>(params[0], address);
    ptx::load_shared_words<kGroups>(params[1], address + 8 * (4 * kGroups));
  }
};

// Scores of tokens g (0, 1) and g + 8 (2, 3) of the block.
template <int D, int kGroups>
__device__ __forceinline__ void score_codes(float (&scores)[4],
                                            const AttentionQueries<D, kGroups>& queries,
                                            const CodedBlock<D, kGroups>& block) {
  constexpr int kTiles = D / 16;
  constexpr int kGroupTiles = kTiles / kGroups;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    // Two chains of products, each half as long.
    float chains[2][4] = {};
#pragma unroll
    for (int i = 0; i < kGroupTiles; ++i) {
      const int j = group * kGroupTiles + i;
      std::uint32_t a[4];
      ptx::unpack_codes(a, block.keys[j]);
      ptx::mma_m16n8k16(chains[i % 2], a, queries.f16[j][0], queries.f16[j][1]);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const std::uint32_t params = block.key_params[row][group];
      const float scale = ptx::low_f16(params) * (row == 0 ? 1.0F : kLowRows / kHighRows);
      const float minimum = ptx::high_f16(params);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int i = 2 * row + c;
        const float sum = (chains[0][i] + chains[1][i]) * queries.factors[c];
        const float part = scale * sum + minimum * queries.minimum_factors[group][c];
        scores[i] = group == 0 ? part : scores[i] + part;
      }
    }
  }
}

// Adds the block's values: of probabilities of tokens g and g + 8. A block that is not there has
// probabilities of 0, and they must not meet a NaN.
template <int D, int kGroups>
__device__ __forceinline__ void add_coded_values(AttentionState<D, kGroups>& state,
                                                 const float (&p)[4],
                                                 const CodedBlock<D, kGroups>& block,
                                                 bool is_there) {
  constexpr int kTiles = D / 16;
  constexpr int kGroupTiles = kTiles / kGroups;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    std::uint32_t b[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const std::uint32_t params = is_there ? block.value_params[row][group] : 0;
      const float scale = ptx::low_f16(params);
      const float minimum = ptx::high_f16(params);
      state.minima[group][0] += p[2 * row] * minimum;
      state.minima[group][1] += p[2 * row + 1] * minimum;
      b[row] = ptx::transposed(ptx::f16x2(p[2 * row] * scale, p[2 * row + 1] * scale));
    }
#pragma unroll
    for (int i = 0; i < kGroupTiles; ++i) {
      const int j = group * kGroupTiles + i;
      std::uint32_t a[4];
      ptx::unpack_codes(a, block.values[j]);
      ptx::mma_m16n8k16(state.values[j], a, b[0], b[1]);
    }
  }
}

}  // namespace fut::cuda
