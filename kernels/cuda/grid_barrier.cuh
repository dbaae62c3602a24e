// All blocks of a grid meet. They have to run at a time. The counter in memory only ever grows: before and
// after a launch it is a multiple of the blocks, so nobody has to set it back.
#pragma once

#include "kernels/cuda/ptx/device_counter.cuh"

namespace fut::cuda {

class GridBarrier {
 public:
  // target: in shared memory, the barrier's own.
  __device__ __forceinline__ GridBarrier(unsigned long long* counter, unsigned long long* target)
      : counter_(counter), target_(target) {
    if (threadIdx.x == 0) *target_ = 0;
  }

  // All threads of all blocks. What any of them wrote is there for all.
  __device__ __forceinline__ void meet() {
    arrive();
    wait();
  }
  // The two halves of it. Behind arrive() all threads of the block have come here.
  __device__ __forceinline__ void arrive() {
    __syncthreads();
    if (threadIdx.x != 0) return;
    unsigned long long target = *target_;
    if (target == 0) {
      const unsigned long long before = ptx::arrive_and_look(counter_);
      target = before - before % gridDim.x + gridDim.x;
    } else {
      target += gridDim.x;
      ptx::arrive(counter_);
    }
    *target_ = target;
  }
  __device__ __forceinline__ void wait() {
    if (threadIdx.x == 0) ptx::wait_for_count(counter_, *target_);
    __syncthreads();
  }

 private:
  unsigned long long* counter_;
  unsigned long long* target_;  // of the last meeting; thread 0's
};

}  // namespace fut::cuda
