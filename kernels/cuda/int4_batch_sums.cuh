// Sums of segments in the main loop of a batch: merged as a balanced binary tree, first those of one block
// as they come, what has to wait for its neighbour kept in registers or parked in shared memory; then those
// of the blocks of a cluster, each of which publishes its own and reads from all others what it finishes.
//
// A lane's sums of a strip are pairs: rows g and g + 8 of one token. Where there are as many pairs as
// blocks, block d finishes pairs d * owned() and on; else several blocks finish one pair, each that of
// some lanes.
#pragma once

#include <cstdint>

#include "kernels/cuda/int4_batch_plan.h"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/cluster.cuh"

namespace fut::cuda {

template <class Config>
class Int4BatchSums {
 public:
  static constexpr int kTiles = Config::kTiles;

  __device__ Int4BatchSums(const Int4BatchArgs& args, std::uint32_t shared, int warp, int rank)
      : args_(args),
        lane_(static_cast<int>(threadIdx.x) % 32),
        rank_(rank),
        parked_(shared + args.layout.parked + warp * (kTiles * 512)),
        owned_(batch_owned_pairs(kTiles, args.cluster)),
        lane_groups_(batch_lane_groups(kTiles, args.cluster)) {}

  // After segment s of the block, whose sums these are: merges what is complete. After the last one `sums`
  // is all of the block's.
  __device__ __forceinline__ void merge(int s, float (&sums)[kTiles][4]) {
    if (s % 2 == 0) {
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i) kept_[i / 4][i % 4] = sums[i / 4][i % 4];
      return;
    }
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) sums[i / 4][i % 4] += kept_[i / 4][i % 4];
    const bool last = s + 1 == args_.segments();
    const int level_bytes = args_.strips() * (kTiles * 512);
    std::uint32_t place = parked_ + lane_ * 16;
#pragma unroll 1
    for (s >>= 1; s & 1; s >>= 1, place += level_bytes) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float4 before = ptx::load_shared_floats(place + n * 512);
        sums[n][0] += before.x;
        sums[n][1] += before.y;
        sums[n][2] += before.z;
        sums[n][3] += before.w;
      }
    }
    if (last) return;  // nothing waits for it
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      ptx::store_shared_floats(place + n * 512,
                               make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]));
    }
  }

  // For the other lanes and blocks that finish them, after the next barrier of all.
  __device__ __forceinline__ void publish(const float (&sums)[kTiles][4]) const {
    __syncwarp();  // lanes have read what they parked
#pragma unroll
    for (int p = 0; p < Config::kPairs; ++p) {
      ptx::store_shared_pair(parked_ + p * 256 + lane_ * 8,
                             make_float2(sums[p / 2][p % 2], sums[p / 2][p % 2 + 2]));
    }
  }

  // Pairs that this lane finishes, if any; the token of one; its sums of the whole cluster, or where the
  // block is alone.
  [[nodiscard]] __device__ int owned() const {
    return owned_;
  }
  [[nodiscard]] __device__ bool finishes() const {
    return lane_ / (32 / lane_groups_) == rank_ % lane_groups_;
  }
  [[nodiscard]] __device__ int token(int i) const {
    const int p = pair(i);
    return p / 2 * 8 + lane_ % 4 * 2 + p % 2;
  }
  [[nodiscard]] __device__ __forceinline__ float2 own_pair(int i) const {
    return ptx::load_shared_pair(parked_ + pair(i) * 256 + lane_ * 8);
  }
  template <int kBlocks>
  [[nodiscard]] __device__ __forceinline__ float2 collect(int i) const {
    const std::uint32_t place = parked_ + pair(i) * 256 + lane_ * 8;
    float2 shares[kBlocks];
#pragma unroll
    for (int from = 0; from < kBlocks; ++from) {
      shares[from] = ptx::load_cluster_pair(ptx::address_in_block(place, from));
    }
#pragma unroll
    for (int count = kBlocks / 2; count >= 1; count /= 2) {
#pragma unroll
      for (int n = 0; n < count; ++n) {
        shares[n] = make_float2(shares[2 * n].x + shares[2 * n + 1].x,
                                shares[2 * n].y + shares[2 * n + 1].y);
      }
    }
    return shares[0];
  }

 private:
  [[nodiscard]] __device__ int pair(int i) const {
    return rank_ * owned_ / lane_groups_ + i;
  }

  const Int4BatchArgs& args_;
  int lane_, rank_;
  std::uint32_t parked_;
  int owned_, lane_groups_;
  float kept_[kTiles][4];  // of an even segment, until the next is there
};

}  // namespace fut::cuda
