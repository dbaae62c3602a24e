// The innermost loop of INT4 projections for up to eight tokens: a segment of K of a strip of 16 rows, by one
// warp, its weights in shared memory as layout/int4_tile.h has them, tokens as int4_tokens.cuh.
// sums    A group's products are added by the tensor core in one chain, which starts from the bias of the
//         stored codes (made once for all strips, by a product as well); times scale, groups ascending.
#pragma once

#include <cstdint>

#include "kernels/cuda/int4_record.cuh"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/int4_mma.cuh"

namespace fut::cuda {

template <class Config>
class Int4Products {
 public:
  // token: shared address of column 0 of this lane's token; biases: of group 0, [group][4].
  __device__ Int4Products(std::uint32_t token, float2* biases)
      : operand_(token + threadIdx.x % 4 * 32), biases_(biases) {}

  // What the sums of each group begin from, kCount of them side by side. A barrier of the warp follows.
  template <int kCount>
  __device__ void make_biases(int first_group, int end_group) const {
    int group = first_group;
#pragma unroll 1
    for (; group + kCount <= end_group; group += kCount) make_some<kCount>(group);
    if constexpr (kCount > 1) {
#pragma unroll 1
      for (; group < end_group; ++group) make_some<1>(group);
    }
  }

  // Adds the groups of a piece that begins with `group`, those before end_group, in units of kInt4LowUnit
  // (0, 1) and kInt4HighUnit.
  __device__ __forceinline__ void add_piece(std::uint32_t piece, int group, int end_group,
                                            float (&sums)[4]) const {
    constexpr int kGroups = Config::kPieceGroups;
    if (group + kGroups <= end_group) {
#pragma unroll
      for (int i = 0; i < kGroups; i += 2) {
        add_groups<2>(piece + i * Config::kRecordBytes, group + i, sums);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        if (i > 0 && group + i >= end_group) break;
        add_groups<1>(piece + i * Config::kRecordBytes, group + i, sums);
      }
    }
  }

 private:
  static constexpr int kBlocks = Config::kGroup / 64;  // of 64 columns, in a group

  // Two tiles of 16 columns of a group: number q of them.
  __device__ uint4 load_operand(int group, int q) const {
    return ptx::load_shared_16(operand_ + group * (2 * Config::kGroup) + q / 2 * 128 + q % 2 * 16);
  }

  // chain[i] += a times the tokens' columns of 64 columns of group + i, block `block` of it. make(i, k, a)
  // gives operand A of 16 columns.
  template <int kCount, class Make>
  __device__ __forceinline__ void multiply_block(float (&chain)[kCount][4], int group, int block,
                                                 const Make& make) const {
#pragma unroll
    for (int q = 0; q < 2; ++q) {  // two tiles of 16 columns at a time
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const uint4 b = load_operand(group + i, 2 * block + q);
        std::uint32_t a[4];
        make(i, 2 * q, a);
        ptx::mma_m16n8k16(chain[i], a, b.x, b.y);
        make(i, 2 * q + 1, a);
        ptx::mma_m16n8k16(chain[i], a, b.z, b.w);
      }
    }
  }

  // Of rows g of a strip, for a group and this lane's two tokens.
  __device__ float2* bias(int group) const {
    return biases_ + (group * 4 + threadIdx.x % 4);
  }

  template <int kCount>
  __device__ __forceinline__ void make_some(int group) const {
    float chain[kCount][4] = {};
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      multiply_block<kCount>(chain, group, b,
                             [](int, int, std::uint32_t(&a)[4]) { ptx::bias_operand(a); });
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (threadIdx.x % 32 < 4) *bias(group + i) = make_float2(chain[i][0], chain[i][1]);
    }
  }

  // Of kCount groups side by side, so that the tensor core has as many chains to work at.
  template <int kCount>
  __device__ __forceinline__ void add_groups(std::uint32_t records, int group,
                                             float (&sums)[4]) const {
    float chain[kCount][4];
#pragma unroll
    for (int i = 0; i < kCount; ++i) start_chain(group + i, chain[i]);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      uint4 words[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        words[i] = load_codes(records + i * Config::kRecordBytes, b);
      }
      multiply_block<kCount>(chain, group, b, [&](int i, int k, std::uint32_t(&a)[4]) {
        const uint4& w = words[i];
        ptx::unpack_codes(a, k == 0 ? w.x : k == 1 ? w.y : k == 2 ? w.z : w.w);
      });
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float2 scales = load_scales<Config::kRecordBytes>(records + i * Config::kRecordBytes);
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[j] += (j < 2 ? scales.x : scales.y) * chain[i][j];
    }
  }

  __device__ __forceinline__ void start_chain(int group, float (&chain)[4]) const {
    constexpr float kUpper = layout::kInt4UnitRatio;  // rows g + 8
    const float2 start = *bias(group);
    chain[0] = start.x;
    chain[1] = start.y;
    chain[2] = start.x * kUpper;
    chain[3] = start.y * kUpper;
  }

  std::uint32_t operand_;
  float2* biases_;
};

// A lane's sums to [row][token] of a strip and segment.
__device__ __forceinline__ void store_segment_sums(float* rows, int tokens,
                                                   const float (&sums)[4]) {
  const int token = threadIdx.x % 4 * 2;
  float* row = rows + threadIdx.x % 32 / 4 * tokens + token;
  if (token < tokens) {
    row[0] = sums[0];
    row[8 * tokens] = sums[2];
  }
  if (token + 1 < tokens) {
    row[1] = sums[1];
    row[8 * tokens + 1] = sums[3];
  }
}

}  // namespace fut::cuda
