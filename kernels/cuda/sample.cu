// sample on the GPU. Contract in ops.h; how a row's token is found: sample_row.cuh.
// launch  a cluster of 8 blocks of 512 threads a row; what stages a row has is known on the device alone
// bound   R * V * 4 bytes of logits, read once; greedy: one pass and one exchange within the cluster
//         beyond the launch. Sampling: an exponential in float64 a logit for each stage that sums
//         weights over the whole row, and few barriers of the cluster
// shared  4 bytes an id (the count of the penalties first, then the logit) and 33 KB
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/sample_row.cuh"
#include "kernels/numeric/philox.h"

namespace fut::cuda {
namespace {

constexpr float kInfinity = __builtin_huge_valf();

__device__ bool has_penalty(const SampleParams& p) {
  return p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
}

// As the CPU does it, rounding by rounding.
__device__ float penalized(float logit, const SampleParams& p, std::uint32_t times_seen) {
  constexpr double kLimit = 3.4028234663852886e38;
  double value = logit;
  value =
      value > 0 ? __ddiv_rn(value, p.repetition_penalty) : __dmul_rn(value, p.repetition_penalty);
  value = __dsub_rn(value, p.presence_penalty);
  value = __dsub_rn(value, __dmul_rn(times_seen, p.frequency_penalty));
  return static_cast<float>(fmin(fmax(value, -kLimit), kLimit));
}

// How often each of the block's ids stands in the window, into the places of the logits.
__device__ void count_history(const RowSampler& row, const std::int32_t* begin,
                              const std::int32_t* end) {
  for (int i = 4 * static_cast<int>(threadIdx.x); i < row.num_ids; i += 4 * kSampleThreads) {
    *reinterpret_cast<uint4*>(row.logits + i) = {0, 0, 0, 0};
  }
  __syncthreads();
  constexpr int kLoads = 8;  // under way at a time
#pragma unroll 1
  for (const std::int32_t* first = begin + threadIdx.x; first < end;
       first += kLoads * kSampleThreads) {
    std::uint32_t places[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const std::int32_t* id = first + j * kSampleThreads;
      places[j] = id < end ? static_cast<std::uint32_t>(*id) - row.first_id : 0xFFFFFFFFU;
    }
#pragma unroll
    for (const std::uint32_t place : places) {
      if (place < static_cast<std::uint32_t>(row.num_ids)) {
        atomicAdd(reinterpret_cast<unsigned*>(row.logits) + place, 1U);
      }
    }
  }
  __syncthreads();
}

// What one thread has seen of the row; ids come in rising order.
struct Seen {
  float best = -kInfinity;
  std::uint32_t best_id = 0;
  float least = kInfinity;
  std::uint32_t count = 0;
  bool fault = false;

  __device__ __forceinline__ void take(float logit, std::uint32_t id) {
    fault |= !(logit < kInfinity);
    if (logit > best) {
      best = logit;
      best_id = id;
    }
    const bool finite = logit > -kInfinity;
    least = fminf(least, finite ? logit : kInfinity);
    count += finite ? 1 : 0;
  }
};

// How many of the block's ids, from the first one on, lie in whole runs of four on 16 bytes.
__device__ __forceinline__ int num_aligned(const RowSampler& row, const float* logits) {
  return reinterpret_cast<std::uintptr_t>(logits) % 16 == 0 ? row.num_ids / 4 * 4 : 0;
}

// As it is: copied into shared memory, a quarter looked at while the next ones arrive.
__device__ __forceinline__ Seen copy_slice(const RowSampler& row, const float* logits) {
  const int copied = num_aligned(row, logits);
  const int chunk = (copied / 4 + kSampleCopies - 1) / kSampleCopies * 4;
  if (threadIdx.x == 0) {
    const std::uint64_t policy = ptx::evict_first_policy();
    for (int c = 0; c * chunk < copied; ++c) {
      const std::uint32_t arrived = ptx::shared_address(&row.s.arrived[c]);
      const auto bytes = static_cast<std::uint32_t>(min(chunk, copied - c * chunk)) * 4;
      ptx::barrier_expect(arrived, bytes);
      ptx::bulk_copy(ptx::shared_address(row.logits + c * chunk), logits + c * chunk, bytes,
                     arrived, policy);
    }
  }
  Seen seen;
#pragma unroll 1
  for (int c = 0; c * chunk < copied; ++c) {
    ptx::barrier_wait(ptx::shared_address(&row.s.arrived[c]), 0);
    const int end = min((c + 1) * chunk, copied);
#pragma unroll 2
    for (int i = c * chunk + 4 * static_cast<int>(threadIdx.x); i < end; i += 4 * kSampleThreads) {
      const float4 four = *reinterpret_cast<const float4*>(row.logits + i);
      const std::uint32_t id = row.first_id + static_cast<std::uint32_t>(i);
      seen.take(four.x, id);
      seen.take(four.y, id + 1);
      seen.take(four.z, id + 2);
      seen.take(four.w, id + 3);
    }
  }
  for (int i = copied + static_cast<int>(threadIdx.x); i < row.num_ids; i += kSampleThreads) {
    row.logits[i] = logits[i];
    seen.take(logits[i], row.first_id + static_cast<std::uint32_t>(i));
  }
  return seen;
}

// With penalties: the count of an id gives way to its logit.
__device__ __forceinline__ Seen penalized_slice(const RowSampler& row, const float* logits) {
  Seen seen;
  constexpr int kLoads = 2;  // under way at a time
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < row.num_ids;
       first += kLoads * kSampleThreads) {
    float v[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int i = first + j * kSampleThreads;
      v[j] = i < row.num_ids ? logits[i] : -kInfinity;
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int i = first + j * kSampleThreads;
      if (i >= row.num_ids) continue;
      const std::uint32_t times_seen = __float_as_uint(row.logits[i]);
      if (times_seen != 0 && isfinite(v[j])) v[j] = penalized(v[j], row.params, times_seen);
      seen.take(v[j], row.first_id + static_cast<std::uint32_t>(i));
      row.logits[i] = v[j];
    }
  }
  return seen;
}

__device__ __forceinline__ std::int32_t sample_row(RowSampler& row, const float* logits,
                                                   std::uint64_t draw_index,
                                                   const std::int32_t* history_begin,
                                                   const std::int32_t* history_end) {
  Seen seen;
  if (has_penalty(row.params) && history_begin < history_end) {
    count_history(row, history_begin, history_end);
    seen = penalized_slice(row, logits);
  } else {
    seen = copy_slice(row, logits);
  }
  // They are looked at by fours.
  const int padded = row.num_ids + static_cast<int>(threadIdx.x);
  if (padded < (row.num_ids + 3) / 4 * 4) row.logits[padded] = -kInfinity;
  const std::uint64_t best =
      seen.best == -kInfinity ? 0 : row.order.code(key_of(seen.best), seen.best_id);
  // All blocks run from here on: before that nobody may write into their shared memory.
  __syncwarp();
  ptx::cluster_wait();
  const Part part = row.merged({best, key_of(seen.least), seen.count, seen.fault ? 1U : 0U});
  row.best = part.wide;
  row.largest = logit_of(row.order.key(part.wide));
  row.least = logit_of(part.low);
  row.num_candidates = part.count;
  if (part.flag != 0 || part.wide == 0) return kNoToken;
  if (row.params.temperature <= kGreedyTemperature) return row.order.id(part.wide);
  row.uniform = static_cast<std::uint32_t>(philox_uniform(row.params.seed, draw_index) * 0x1p24F);
  return row.draw();
}

__global__ void __launch_bounds__(kSampleThreads, 2)
    sample_kernel(SampleArgs a, int slice_ids, int id_bits) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<SampleShared*>(memory);
  ptx::cluster_arrive();
  if (threadIdx.x == 0) {
    shared.all_count = 0;
    for (const std::uint64_t& barrier : shared.arrived) {
      ptx::barrier_init(ptx::shared_address(&barrier), 1);
    }
    ptx::barrier_init_fence();
  }
  __syncthreads();
  ptx::take_turn();
  const std::int64_t r = blockIdx.x / kSampleCluster;
  const SampleParams& params = a.params[r];
  const int vocabulary = static_cast<int>(a.logits.cols);
  const int first = static_cast<int>(ptx::cluster_rank()) * slice_ids;
  RowSampler row = {.s = shared,
                    .params = params,
                    .logits = reinterpret_cast<float*>(&shared + 1),
                    .first_id = static_cast<std::uint32_t>(first),
                    .num_ids = max(0, min(slice_ids, vocabulary - first)),
                    .order = {id_bits}};
  const std::int32_t token =
      sample_row(row, a.logits.data + r * a.logits.row_stride + first, a.draw_index[r],
                 a.history + a.history_begins[r], a.history + a.history_ends[r]);
  if (ptx::cluster_rank() == 0 && threadIdx.x == 0) a.next_ids[r] = token;
}

}  // namespace

void sample(const SampleArgs& a, LaunchContext& context) {
  check(a);
  const SamplePlan plan = plan_sample(a.logits.cols, sizeof(SampleShared));
  FUT_CUDA_CHECK(cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      kSampleSharedLimit));
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(a.logits.rows) * kSampleCluster),
                             .block = dim3(kSampleThreads),
                             .shared_bytes = static_cast<std::size_t>(plan.shared_bytes),
                             .cluster = kSampleCluster};
  launch_dependent("sample", sample_kernel, shape, context.handle(), a, plan.slice_ids,
                   plan.id_bits);
}

}  // namespace fut::cuda
