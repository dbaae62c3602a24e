// One warp's pieces of INT4 weights: a ring in shared memory, filled by bulk copies, in the order in which
// they are used. The copies of the first pieces start before the predecessor kernel has ended, for nobody
// writes weights. When all are asked for, what a later kernel will ask for first is called into the
// second-level cache. Called by whole warps.
#pragma once

#include <cstdint>

#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/layout/k_segments.h"

namespace fut::cuda {

// What a warp takes of a matrix: of strips first, first + step, ... below end some groups.
struct Int4Share {
  int first_strip = 0, end_strip = 0, step = 1;
  int first_group = 0, end_group = 0;
};

template <class Config>
class WeightRing {
 public:
  __device__ WeightRing(const Int4GemmArgs& args, std::uint32_t barriers, std::uint32_t buffer,
                        const Int4Share& share)
      : args_(args),
        barriers_(barriers),
        buffer_(buffer),
        next_strip_(share.first_strip),
        next_group_(share.first_group),
        share_(share) {
    if (is_leader()) {
      for (int s = 0; s < num_stages(); ++s) ptx::barrier_init(barriers_ + 8 * s, 1);
      ptx::barrier_init_fence();
      if (share_.first_group >= share_.end_group) next_strip_ = share_.end_strip;
      for (int s = 0; s < num_stages(); ++s) request();
    }
    __syncwarp();
  }

  // The address of the next piece, once it is there.
  __device__ std::uint32_t wait() const {
    ptx::barrier_wait(barriers_ + 8 * stage_, parity_);
    return buffer_ + stage_ * Config::kPieceBytes;
  }

  // All lanes have used what they read of the piece: its place is filled again.
  __device__ void release() {
    __syncwarp();
    if (is_leader()) {
      ptx::order_copies_after_reads();
      request();
    }
    if (++stage_ == num_stages()) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  static constexpr int kCalled = 0x7FFFFFFF;  // in place of a strip: all is done

  __device__ int num_stages() const { return Config::kClusters ? args_.stages : kFewTokenStages; }
  __device__ static bool is_leader() { return threadIdx.x % 32 == 0; }

  // Asks for the next piece, where there is one.
  __device__ void request() {
    if (next_strip_ >= share_.end_strip) {
      if (next_strip_ != kCalled) call_upcoming();
      next_strip_ = kCalled;
      return;
    }
    const int groups = min(Config::kPieceGroups, share_.end_group - next_group_);
    const std::uint32_t bytes = groups * Config::kRecordBytes;
    const std::uint32_t barrier = barriers_ + 8 * request_stage_;
    const std::int64_t record =
        static_cast<std::int64_t>(next_strip_) * args_.num_groups + next_group_;
    ptx::barrier_expect(barrier, bytes);
    ptx::bulk_copy(buffer_ + request_stage_ * Config::kPieceBytes,
                   args_.packed + record * Config::kRecordBytes, bytes, barrier,
                   ptx::evict_first_policy());
    if (++request_stage_ == num_stages()) request_stage_ = 0;
    next_group_ += groups;
    if (next_group_ >= share_.end_group) {
      next_group_ = share_.first_group;
      next_strip_ += Config::kClusters ? share_.step : 1;
    }
  }

  // The pieces that the same warp of a block of that kernel will ask for.
  __device__ void call_upcoming() {
    const Int4Upcoming& u = args_.upcoming;
    if (u.packed == nullptr) return;
    const int segment = threadIdx.x / 32;
    const int first_group = layout::k_segment_begin(segment, u.num_groups);
    const int groups = layout::k_segment_begin(segment + 1, u.num_groups) - first_group;
    if (groups == 0) return;
    const int begin = int4_share(u.num_strips, blockIdx.x, gridDim.x);
    const int end = int4_share(u.num_strips, blockIdx.x + 1, gridDim.x);
    for (int strip = begin + u.first; strip < min(end, begin + u.first + u.count); ++strip) {
      const std::int64_t record = static_cast<std::int64_t>(strip) * u.num_groups + first_group;
      ptx::call_into_second_level(u.packed + record * Config::kRecordBytes,
                                  groups * Config::kRecordBytes);
    }
  }

  const Int4GemmArgs& args_;
  std::uint32_t barriers_, buffer_;
  int next_strip_, next_group_;
  Int4Share share_;
  int request_stage_ = 0;
  int stage_ = 0;
  std::uint32_t parity_ = 0;
};

}  // namespace fut::cuda
