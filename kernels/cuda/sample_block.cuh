// sample on the GPU: what the blocks of one row's cluster share, sums and scans of a block, and a list
// in falling order.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/cluster_memory.cuh"
#include "kernels/cuda/sample_order.cuh"
#include "kernels/cuda/sample_plan.h"

namespace fut::cuda {

inline constexpr int kSampleWarps = kSampleThreads / 32;
inline constexpr int kSampleCopies = 4;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

// What a block tells the others.
struct Part {
  std::uint64_t wide;
  std::uint32_t low;
  std::uint32_t count;
  std::uint32_t flag;
};

// The bin of a histogram in which a running sum reaches its target.
struct Crossing {
  std::uint64_t sum_before;  // of all bins before it
  std::uint32_t bin;
  std::uint32_t count_before;
  std::uint32_t count;
};

struct Histogram {
  std::uint32_t counts[kSampleBins];
  std::uint32_t low[kSampleBins];  // of the bin's sum
  std::uint32_t high[kSampleBins];
};
struct Lists {
  std::uint64_t own[kSampleList];  // what this block found
  std::uint64_t all[kSampleList];  // block 0: what all blocks found
};

// The logits lie behind it.
struct alignas(16) SampleShared {
  union {
    Histogram histogram;
    Lists lists;
  };
  // Two of each, used in turn: who writes the next one has seen everybody done with the last but one.
  Part parts[2][kSampleCluster];
  Crossing crossings[2];
  std::uint64_t warp_sums[kSampleWarps];
  std::uint32_t warp_counts[kSampleWarps];
  Part warp_parts[kSampleWarps];
  std::uint64_t arrived[kSampleCopies];  // barriers
  std::uint64_t answer;
  std::uint32_t own_count, all_count, all_base;
};

__device__ __forceinline__ std::uint64_t warp_max(std::uint64_t value) {
  const auto high = static_cast<std::uint32_t>(value >> 32);
  const std::uint32_t best = __reduce_max_sync(kAllLanes, high);
  const std::uint32_t low = high == best ? static_cast<std::uint32_t>(value) : 0;
  return (static_cast<std::uint64_t>(best) << 32) | __reduce_max_sync(kAllLanes, low);
}

// Of all parts: the largest `wide`, the smallest `low`, the sum of the counts, any flag.
__device__ __forceinline__ Part warp_merged(const Part& part) {
  return {warp_max(part.wide), __reduce_min_sync(kAllLanes, part.low),
          __reduce_add_sync(kAllLanes, part.count), __reduce_or_sync(kAllLanes, part.flag)};
}
__device__ __forceinline__ Part no_part() {
  return {0, 0xFFFFFFFFU, 0, 0};
}

// A sum and a count of this thread and of all threads before it, and of all threads.
struct Running {
  std::uint64_t sum;
  std::uint32_t count;
  std::uint64_t sum_of_all;
  std::uint32_t count_of_all;
};

__device__ __forceinline__ void warp_running(std::uint64_t& sum, std::uint32_t& count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::uint64_t other = __shfl_up_sync(kAllLanes, sum, step);
    const std::uint32_t other_count = __shfl_up_sync(kAllLanes, count, step);
    sum += lane >= step ? other : 0;
    count += lane >= step ? other_count : 0;
  }
}

// All threads. Two calls need a barrier between them.
__device__ __forceinline__ Running block_running(SampleShared& s, std::uint64_t sum,
                                                 std::uint32_t count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  warp_running(sum, count);
  if (lane == 31) {
    s.warp_sums[warp] = sum;
    s.warp_counts[warp] = count;
  }
  __syncthreads();
  std::uint64_t warps_sum = lane < kSampleWarps ? s.warp_sums[lane] : 0;
  std::uint32_t warps_count = lane < kSampleWarps ? s.warp_counts[lane] : 0;
  warp_running(warps_sum, warps_count);
  // Lane w has the sum of warps 0 .. w.
  const std::uint64_t before = __shfl_sync(kAllLanes, warps_sum, warp - 1);
  const std::uint32_t count_before = __shfl_sync(kAllLanes, warps_count, warp - 1);
  return {sum + (warp > 0 ? before : 0), count + (warp > 0 ? count_before : 0),
          __shfl_sync(kAllLanes, warps_sum, 31), __shfl_sync(kAllLanes, warps_count, 31)};
}

__device__ __forceinline__ std::uint64_t block_sum(SampleShared& s, std::uint64_t value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  if (threadIdx.x % 32 == 0) s.warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
  for (const std::uint64_t sum : s.warp_sums) value += sum;
  __syncthreads();
  return value;
}

// Sorts the first `count` of a list, all different: each goes where the number of larger ones says.
__device__ inline void sort_few_falling(std::uint64_t* list, int count) {
  const int tid = static_cast<int>(threadIdx.x);
  std::uint64_t own = 0;
  int place = 0;
  if (tid < count) {
    own = list[tid];
#pragma unroll 4
    for (int i = 0; i < count; ++i) place += list[i] > own ? 1 : 0;
  }
  __syncthreads();
  if (tid < count) list[place] = own;
  __syncthreads();
}

// Sorts the first `count` of a list of kSampleList, all different, the largest first. All threads.
__device__ inline void sort_falling(std::uint64_t* list, int count) {
  constexpr int kFew = 256;
  if (count <= kFew) return sort_few_falling(list, count);
  int size = kFew;
  while (size < count) size *= 2;
  const int tid = static_cast<int>(threadIdx.x);
  for (int i = count + tid; i < size; i += kSampleThreads) list[i] = 0;
  __syncthreads();
  for (int run = 2; run <= size; run *= 2) {
    for (int gap = run / 2; gap > 0; gap /= 2) {
      for (int pair = tid; pair < size / 2; pair += kSampleThreads) {
        const int left = 2 * pair - (pair & (gap - 1));
        const std::uint64_t a = list[left];
        const std::uint64_t b = list[left + gap];
        if ((a < b) == ((left & run) == 0)) {
          list[left] = b;
          list[left + gap] = a;
        }
      }
      __syncthreads();
    }
  }
}

}  // namespace fut::cuda
