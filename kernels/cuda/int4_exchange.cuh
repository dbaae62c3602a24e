// How warps that hold different segments of the same strips add them up: each sends every other one those
// outputs that the other finishes, lane to lane, and finishes its own. Warps of one block and of other
// blocks of the cluster are alike. Nobody waits for a whole block.
//
// A lane's sums of a strip are pairs: rows g and g + 8 of one token. Where there are as many pairs as
// shares (of the segments, in order of K), share d finishes pairs d * kOwned and on; else several shares
// finish one pair, each that of some lanes.
//
// Sums are sent by bulk copies, for whose arrival a barrier counts bytes once for each copy and not for
// each lane. What was sent in one round is read after the products of the next, so that nobody has to wait
// for it: compute 0, send 0, compute 1, receive 0, send 1, compute 2, receive 1, ...
// Two buffers in turn are enough: whoever sends round i + 2 has received round i + 1, so all others have
// sent that, which they did after they had read what came for round i.
#pragma once

#include <cstdint>

#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/cluster.cuh"

namespace fut::cuda {

template <class Config>
class Int4Exchange {
 public:
  static constexpr int kTiles = Config::kTiles;
  static constexpr int kShares = Config::kValues.shares();
  static constexpr int kPairs = 2 * kTiles;
  static constexpr int kOwned = Config::kValues.owned_pairs();

  // barriers: of this block, a warp's two kWarpBarriers apart; buffers: [warp][exchange_bytes()].
  __device__ Int4Exchange(std::uint32_t barriers, std::uint32_t buffers, int warp, int share)
      : barriers_(barriers), buffers_(buffers), warp_(warp), share_(share) {
    if (threadIdx.x % 32 == 0) {
      for (int b = 0; b < 2; ++b) ptx::barrier_init(barrier(warp_, b), 1);
      ptx::barrier_init_fence();
    }
  }

  // Whether this lane finishes something, and the token of one of its pairs.
  __device__ bool finishes() const { return group_of_lane() == share_ % kLaneGroups; }
  __device__ int token(int pair) const {
    const int p = share_ * kOwned / kLaneGroups + pair;
    return p / 2 * 8 + threadIdx.x % 4 * 2 + p % 2;
  }

  // Before a round's products.
  __device__ void expect() const {
    if (threadIdx.x % 32 == 0) {
      ptx::barrier_expect(barrier(warp_, buffer_), (kShares - 1) * kMessageBytes);
    }
  }

  // Gives away what others finish and keeps the rest. warp_of(part): the warp of a block that has the same
  // strips and that part of the block's shares; parts: shares of a block.
  template <class WarpOf>
  __device__ __forceinline__ void send(const float (&sums)[kTiles][4], int parts,
                                       const WarpOf& warp_of) {
    if (threadIdx.x % 32 < kShares) ptx::wait_until_sent();
    __syncwarp();
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int to = p * kLaneGroups / kOwned + group_of_lane();
      const float2 pair = make_float2(sums[p / 2][p % 2], sums[p / 2][p % 2 + 2]);
      if (to == share_) {
        kept_[p % kOwned] = pair;
      } else {
        ptx::store_shared_pair(outgoing(to) + place_of_lane(p % kOwned), pair);
      }
    }
    ptx::fence_async_proxy();
    __syncwarp();
    // A lane for each message.
    const int to = threadIdx.x % 32;
    if (to < kShares && to != share_) {
      send_to(to, to / parts, warp_of(to % parts));
      ptx::end_sending();
    }
    ++rounds_;
    buffer_ ^= 1;
  }

  // The sums over all segments of this lane's pairs, of the round that was sent last.
  __device__ __forceinline__ void receive(float2 (&owned)[kOwned]) const {
    const int last = buffer_ ^ 1;
    ptx::barrier_wait(barrier(warp_, last), (rounds_ - 1) >> 1 & 1);
    if (!finishes()) return;
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      float2 shares[kShares];
#pragma unroll
      for (int from = 0; from < kShares; ++from) {
        shares[from] = kept_[i];
        if (from != share_) {
          shares[from] =
              ptx::load_shared_pair(incoming(warp_, last, from, share_) + place_of_lane(i));
        }
      }
      owned[i] = merge<kShares>(shares);
    }
  }

  // After the last round: a block's memory has to stay until what is sent was read.
  __device__ void finish() const {
    if (threadIdx.x % 32 < kShares) ptx::wait_until_sent();
  }

 private:
  static constexpr int kLaneGroups = Config::kValues.lane_groups();
  static constexpr int kLanes = 32 / kLaneGroups;  // of a group
  static constexpr int kMessageBytes = Config::kValues.message_bytes();

  __device__ static int group_of_lane() {
    return threadIdx.x % 32 / kLanes;
  }
  // In a message.
  __device__ static std::uint32_t place_of_lane(int pair) {
    return (pair * kLanes + threadIdx.x % kLanes) * 8;
  }
  __device__ std::uint32_t barrier(int warp, int buffer) const {
    return barriers_ + (warp * kWarpBarriers + buffer) * 8;
  }
  // A warp's messages: two times one from each other share, then one for each.
  __device__ std::uint32_t message(int warp, int buffer, int slot) const {
    return buffers_ + warp * Config::kValues.exchange_bytes() +
           (buffer * (kShares - 1) + slot) * kMessageBytes;
  }
  // From share `from` for share `to`.
  __device__ std::uint32_t incoming(int warp, int buffer, int from, int to) const {
    return message(warp, buffer, from < to ? from : from - 1);
  }
  __device__ std::uint32_t outgoing(int to) const {
    return message(warp_, 2, to < share_ ? to : to - 1);
  }

  __device__ __forceinline__ void send_to(int to, int rank, int warp) const {
    ptx::copy_to_block(ptx::address_in_block(incoming(warp, buffer_, share_, to), rank),
                       outgoing(to), kMessageBytes,
                       ptx::address_in_block(barrier(warp, buffer_), rank));
  }

  // As a balanced binary tree.
  template <int kCount>
  __device__ __forceinline__ static float2 merge(const float2* shares) {
    if constexpr (kCount == 1) {
      return shares[0];
    } else {
      const float2 a = merge<kCount / 2>(shares);
      const float2 b = merge<kCount / 2>(shares + kCount / 2);
      return make_float2(a.x + b.x, a.y + b.y);
    }
  }

  std::uint32_t barriers_, buffers_;
  int warp_, share_;
  int buffer_ = 0;  // of the next round that is sent
  int rounds_ = 0;  // sent
  float2 kept_[kOwned] = {};
};

}  // namespace fut::cuda
