// One warp's pieces of INT4 weights: a ring in shared memory, filled by bulk copies, in the order in which
// they are used. The copies of the first pieces start before the predecessor kernel has ended, for nobody
// writes weights. Called by whole warps.
#pragma once

#include <cstdint>

#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/layout/k_segments.h"

namespace fut::cuda {

// What a warp takes of a matrix: of each of some strips the same groups.
struct Int4Share {
  int first_strip = 0, end_strip = 0;
  int first_group = 0, end_group = 0;
};

template <class Config>
class WeightRing {
 public:
  __device__ WeightRing(const Int4GemmArgs& args, std::uint32_t buffer, const Int4Share& share)
      : args_(args),
        buffer_(buffer),
        groups_(share.end_group - share.first_group),
        groups_left_(groups_),
        next_(
            (static_cast<std::uint32_t>(share.first_strip) * args.num_groups + share.first_group) *
            Config::kRecordBytes) {
    const int strips = share.end_strip - share.first_strip;
    pieces_left_ = strips * ((groups_ + Config::kPieceGroups - 1) / Config::kPieceGroups);
    if (is_leader()) {
      for (int s = 0; s < kFewTokenStages; ++s) ptx::barrier_init(barrier_of(s), 1);
      ptx::barrier_init_fence();
      for (int s = 0; s < kFewTokenStages; ++s) request(s);
    }
    __syncwarp();
  }

  // The address of the next piece, once it is there.
  __device__ __forceinline__ std::uint32_t wait() const {
    ptx::barrier_wait(barrier_of(stage_), parity_);
    return buffer_ + stage_ * Config::kPieceBytes;
  }

  // All lanes have used what they read of the piece: its place is filled again.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (is_leader()) {
      ptx::fence_async_proxy();
      request(stage_);
    }
    if (++stage_ == kFewTokenStages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  __device__ std::uint32_t barrier_of(int stage) const {
    return buffer_ + static_cast<std::uint32_t>(kFewTokenStages * Config::kPieceBytes + 8 * stage);
  }
  __device__ static bool is_leader() { return threadIdx.x % 32 == 0; }

  // Asks for the next piece, where there is one.
  __device__ __forceinline__ void request(int stage) {
    if (pieces_left_ == 0) return;
    const std::uint32_t bytes = min(Config::kPieceGroups, groups_left_) * Config::kRecordBytes;
    const std::uint32_t barrier = barrier_of(stage);
    ptx::barrier_expect(barrier, bytes);
    ptx::bulk_copy(buffer_ + stage * Config::kPieceBytes, args_.packed + next_, bytes, barrier,
                   ptx::evict_first_policy());
    next_ += bytes;
    groups_left_ -= Config::kPieceGroups;
    if (groups_left_ <= 0) {
      groups_left_ = groups_;
      next_ += static_cast<std::uint32_t>(args_.num_groups - groups_) * Config::kRecordBytes;
    }
    --pieces_left_;
  }

  const Int4GemmArgs& args_;
  std::uint32_t buffer_;
  int groups_;           // of a strip
  int groups_left_;      // of the strip that is being asked for
  std::uint32_t next_;   // offset of the next piece; a packed matrix has less than 4 GiB
  int pieces_left_ = 0;  // to ask for
  int stage_ = 0;        // that is used, and then filled again
  std::uint32_t parity_ = 0;
};

}  // namespace fut::cuda
