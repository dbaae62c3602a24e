// Attention of a tile of queries over the pages of their sequence, with a softmax that goes along:
// for each page, scores, a new maximum, what was summed so far scaled down to it, probabilities,
// their sums with and without values. Products on the tensor cores, BF16 operands, float32 sums.
#pragma once

#include "kernels/cuda/kv_rows.cuh"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/matrix_fragments.cuh"
#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/formats.h"

namespace fut::cuda {

inline constexpr int kWarpRows = 16;  // tokens times heads that share a KV head

struct PrefillArgs {
  ConstActivationView q;
  ActivationView out;
  const float* out_scales = nullptr;
  RaggedBatch batch;
  int heads = 1;            // query heads that share a KV head
  int tokens_per_tile = 1;  // with all of these heads they fill the rows
  float scale = 0;          // of scores
  unsigned long long* saturated = nullptr;
};

// Consecutive tokens of one sequence.
struct QueryTile {
  int sequence = 0;
  int first_token = 0;
  int num_tokens = 0;  // 0: there is no such tile
};

// Tiles count up sequence by sequence; all threads of a block look for the same one.
__device__ inline QueryTile find_query_tile(const PrefillArgs& a, int index) {
  for (int s = 0; s < a.batch.num_sequences; ++s) {
    const int tokens = a.batch.q_indptr[s + 1] - a.batch.q_indptr[s];
    const int tiles = (tokens + a.tokens_per_tile - 1) / a.tokens_per_tile;
    if (index < tiles) {
      const int first = index * a.tokens_per_tile;
      return {s, a.batch.q_indptr[s] + first, min(a.tokens_per_tile, tokens - first)};
    }
    index -= tiles;
  }
  return {};
}

__device__ inline KvSpan span_of(const RaggedBatch& batch, const QueryTile& tile) {
  KvSpan span;
  span.pages = batch.page_table + batch.kv_indptr[tile.sequence];
  span.raw_slot = batch.raw_slots == nullptr ? 0 : batch.raw_slots[tile.sequence];
  span.first_token = batch.q_indptr[tile.sequence];
  span.begin =
      batch.kv_lengths[tile.sequence] - (batch.q_indptr[tile.sequence + 1] - span.first_token);
  span.end = batch.positions[tile.first_token] + tile.num_tokens;
  return span;
}

// One of a lane's two rows of the tile: those beyond its tokens repeat the last one and are not stored.
struct QueryRow {
  int token;
  int head;
  int position;
  bool exists;
};

__device__ inline QueryRow row_of(const PrefillArgs& a, const QueryTile& tile, int kv_head,
                                  int row) {
  const int rows = tile.num_tokens * a.heads;
  const int own = min(row, rows - 1);
  const int token = tile.first_token + own / a.heads;
  return {token, kv_head * a.heads + own % a.heads, a.batch.positions[token], row < rows};
}

__device__ inline float query_number(const PrefillArgs& a, std::int64_t i) {
  if (a.q.dtype == DType::F32) return static_cast<const float*>(a.q.data)[i];
  return bf16_to_f32(static_cast<const std::uint16_t*>(a.q.data)[i]);
}

// What a lane holds of its warp's 16 rows. [0] of pairs belongs to row g, [1] to row g + 8.
template <int kHeadDim>
struct Accumulator {
  float out[kHeadDim / 8][4] = {};
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};  // of the lane's own columns
};

// Operand A of the product with keys.
template <int kHeadDim>
__device__ __forceinline__ void load_queries(const PrefillArgs& a, const QueryRow (&rows)[2],
                                             std::uint32_t (&q)[kHeadDim / 16][4]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const std::int64_t first = rows[r].token * a.q.row_stride + rows[r].head * kHeadDim + 2 * t;
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
#pragma unroll
      for (int right = 0; right < 2; ++right) {
        const std::int64_t i = first + 16 * k + 8 * right;
        q[k][r + 2 * right] = ptx::bf16x2(query_number(a, i), query_number(a, i + 1));
      }
    }
  }
}

// scores[n] = queries times keys 8n .. 8n + 7 of the tile.
template <int kHeadDim>
__device__ __forceinline__ void multiply_keys(const std::uint32_t (&q)[kHeadDim / 16][4],
                                              const std::uint16_t* keys,
                                              float (&scores)[kPrefillKeys / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Matrices: keys 0 .. 7, dims 0 .. 7; dims 8 .. 15; keys 8 .. 15 in the same way.
  const std::uint32_t corner = ptx::shared_address(
      keys + (lane / 16 * 8 + lane % 8) * KvTile<kHeadDim>::kStride + lane / 8 % 2 * 8);
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kPrefillKeys / 16; ++n) {
      std::uint32_t b[4];
      ptx::load_matrices(b, corner + 2 * (16 * n * KvTile<kHeadDim>::kStride + 16 * k));
      ptx::mma_bf16_m16n8k16(scores[2 * n], q[k], b[0], b[1]);
      ptx::mma_bf16_m16n8k16(scores[2 * n + 1], q[k], b[2], b[3]);
    }
  }
}

// out += probabilities, rounded to BF16, times values.
template <int kHeadDim>
__device__ __forceinline__ void multiply_values(const float (&p)[kPrefillKeys / 8][4],
                                                const std::uint16_t* values,
                                                float (&out)[kHeadDim / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Matrices: keys 0 .. 7, dims 0 .. 7; keys 8 .. 15; dims 8 .. 15 in the same way.
  const std::uint32_t corner = ptx::shared_address(
      values + (lane / 8 % 2 * 8 + lane % 8) * KvTile<kHeadDim>::kStride + lane / 16 * 8);
#pragma unroll
  for (int k = 0; k < kPrefillKeys / 16; ++k) {
    const std::uint32_t a[4] = {ptx::bf16x2(p[2 * k][0], p[2 * k][1]),
                                ptx::bf16x2(p[2 * k][2], p[2 * k][3]),
                                ptx::bf16x2(p[2 * k + 1][0], p[2 * k + 1][1]),
                                ptx::bf16x2(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
    for (int n = 0; n < kHeadDim / 16; ++n) {
      std::uint32_t b[4];
      ptx::load_matrices_transposed(b, corner + 2 * (16 * k * KvTile<kHeadDim>::kStride + 16 * n));
      ptx::mma_bf16_m16n8k16(out[2 * n], a, b[0], b[1]);
      ptx::mma_bf16_m16n8k16(out[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// Products of queries and keys to scores; those of keys behind a row's own position count for nothing.
__device__ __forceinline__ void scale_and_mask(float (&scores)[kPrefillKeys / 8][4], float scale,
                                               const QueryRow (&rows)[2], int first) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < kPrefillKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first + 8 * n + 2 * t + i % 2;
      scores[n][i] = key <= rows[i / 2].position ? __fmul_rn(scores[n][i], scale) : -INFINITY;
    }
  }
}

// Scores to probabilities under the maximum so far; what was summed under an earlier one is scaled.
template <int kHeadDim>
__device__ __forceinline__ void softmax_step(float (&scores)[kPrefillKeys / 8][4],
                                             Accumulator<kHeadDim>& own) {
  constexpr unsigned kAllLanes = 0xFFFFFFFFU;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float maximum = own.maximum[r];
#pragma unroll
    for (int n = 0; n < kPrefillKeys / 8; ++n) {
      maximum = fmaxf(maximum, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
    }
    maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 2));
    const float factor = expf(own.maximum[r] - maximum);
    own.maximum[r] = maximum;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kPrefillKeys / 8; ++n) {
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) {
        scores[n][i] = expf(scores[n][i] - maximum);
        sum += scores[n][i];
      }
    }
    own.sum[r] = own.sum[r] * factor + sum;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      own.out[n][2 * r] *= factor;
      own.out[n][2 * r + 1] *= factor;
    }
  }
}

// One number of the result in its type; says whether it was clipped.
__device__ inline bool store_number(const PrefillArgs& a, std::int64_t i, float value,
                                    float out_scale) {
  if (a.out.dtype == DType::E4M3) {
    static_cast<std::uint8_t*>(a.out.data)[i] = f32_to_e4m3(value * out_scale);
    return e4m3_saturates(value * out_scale);
  }
  static_cast<std::uint16_t*>(a.out.data)[i] =
      a.out.dtype == DType::BF16 ? f32_to_bf16(value) : f32_to_f16_saturating(value);
  return false;
}

template <int kHeadDim>
__device__ __forceinline__ void store_outputs(const PrefillArgs& a, const QueryRow (&rows)[2],
                                              int kv_head, const Accumulator<kHeadDim>& own) {
  constexpr unsigned kAllLanes = 0xFFFFFFFFU;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const float out_scale = a.out_scales == nullptr ? 1.0F : a.out_scales[kv_head];
  unsigned clipped = 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = own.sum[r];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    if (!rows[r].exists) continue;
    const std::int64_t first = rows[r].token * a.out.row_stride + rows[r].head * kHeadDim + 2 * t;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float value = own.out[n][2 * r + i] / sum;
        clipped += store_number(a, first + 8 * n + i, value, out_scale) ? 1 : 0;
      }
    }
  }
  if (a.out_scales == nullptr) return;
  clipped = __reduce_add_sync(kAllLanes, clipped);
  if (threadIdx.x % 32 == 0 && clipped > 0) atomicAdd(a.saturated, clipped);
}

}  // namespace fut::cuda
