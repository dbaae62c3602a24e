// The step's own rows: query heads rotated, rounded and laid out as operands, and (INT4 cache) the key
// and the value of the token. Loads are apart from what is done with them, so that they can be under way
// while the kernel looks for its keys.
#pragma once

#include "kernels/cuda/attention_blocks.cuh"
#include "kernels/cuda/kv_append.cuh"

namespace fut::cuda {

// The query head that one warp makes for its block: that of its number. Columns without a head are zeros.
template <int D, int kGroups>
class QueryMaker {
 public:
  __device__ __forceinline__ QueryMaker(const AttentionDecodeArgs& args, std::uint8_t* shared,
                                        int head, int kv_head, int sequence)
      : args_(args), shared_(shared), head_(head) {
    static_assert(kAttentionWarps == kAttentionHeads);
    if (head >= args.heads_per_kv_head) return;
    const std::int64_t first =
        sequence * args.q_stride + (kv_head * args.heads_per_kv_head + head) * D;
    if (args.q_is_bf16) {
      row_.load_bf16(static_cast<const std::uint16_t*>(args.q) + first);
    } else {
      row_.load(static_cast<const float*>(args.q) + first);
    }
  }

  // To shared memory.
  __device__ __forceinline__ void make() {
    if (head_ < args_.heads_per_kv_head) {
      row_.rotate(args_.rotation_block, args_.rotation_norm);
      row_.round_to_bf16();
    }
    row_.store(shared_ + args_.layout.queries_bf16 + head_ * kRowBytes, ptx::bf16x2);
    if constexpr (kGroups > 0) make_scaled();
  }

 private:
  static constexpr int kRowBytes = AttentionLayout::row_bytes(D);

  // FP16 with its power of two, and the factors that undo it (attention_blocks.cuh).
  __device__ __forceinline__ void make_scaled() {
    float largest = 0;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WarpRow<D>::kOwn; ++i) {
      largest = fmaxf(largest, fabsf(row_.v[i]));
      sum += row_.v[i];
    }
    constexpr int kGroupLanes = 32 / kGroups;
#pragma unroll
    for (int distance = 1; distance < kGroupLanes; distance *= 2) {
      sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
    }
    // Within what float32 has on both sides; a head of zeros keeps some power.
    const unsigned bits = __reduce_max_sync(0xFFFFFFFFU, __float_as_uint(largest));
    const int exponent = static_cast<int>(bits >> 23) - 127;
    const int shift = min(max(13 - exponent, -90), 90);
    const float power = __uint_as_float((127 + shift) << 23);
#pragma unroll
    for (int i = 0; i < WarpRow<D>::kOwn; ++i) row_.v[i] *= power;
    row_.store(shared_ + args_.layout.queries_f16 + head_ * kRowBytes, ptx::f16x2);
    auto* factors = reinterpret_cast<float*>(shared_ + args_.layout.factors) + head_;
    const int lane = threadIdx.x % 32;
    if (lane == 0) {
      factors[0] = args_.score_scale * (__uint_as_float((127 - shift) << 23) / kLowRows);
    }
    if (lane % kGroupLanes == 0) {
      factors[(1 + lane / kGroupLanes) * kAttentionHeads] = sum * args_.score_scale;
    }
  }

  const AttentionDecodeArgs& args_;
  std::uint8_t* shared_;
  int head_;
  WarpRow<D> row_ = {};
};

// What QueryMaker left in shared memory, as every warp holds it.
template <int D, int kGroups>
__device__ __forceinline__ void load_queries(AttentionQueries<D, kGroups>& queries,
                                             const AttentionDecodeArgs& args,
                                             std::uint8_t* shared) {
  queries.bf16 = ptx::shared_address(shared + args.layout.queries_bf16);
  queries.score_scale = args.score_scale;
  if constexpr (kGroups > 0) {
    const std::uint32_t rows = ptx::shared_address(shared + args.layout.queries_f16);
#pragma unroll
    for (int j = 0; j < D / 16; j += 2) {
      std::uint32_t b[4];
      load_query_tiles<D>(b, rows, j);
      queries.f16[j][0] = b[0];
      queries.f16[j][1] = b[1];
      queries.f16[j + 1][0] = b[2];
      queries.f16[j + 1][1] = b[3];
    }
    const auto* factors =
        reinterpret_cast<const float2*>(shared + args.layout.factors) + threadIdx.x % 4;
    queries.factors[0] = factors[0].x;
    queries.factors[1] = factors[0].y;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const float2 f = factors[(1 + group) * kAttentionHeads / 2];
      queries.minimum_factors[group][0] = f.x;
      queries.minimum_factors[group][1] = f.y;
    }
  }
}

}  // namespace fut::cuda
