// sample on the GPU: one row, by the blocks of a cluster. Each holds the logits of a run of ids in its
// shared memory, minus infinity for what cannot be drawn; what they find out about the row goes from
// block to block.
//
// A stage looks for its border, the last candidate it keeps: the one in falling order at which the
// running sum (of ones, or of weights) reaches the stage's target. A histogram over the distance from
// the largest logit says in which bin that is. Where the candidates down to this bin fit a list, block
// 0 gathers and sorts them and does all that is left; else the candidates of the bin alone are sorted,
// or, where they are too many for that too, a histogram over the bin's codes is next, and so on.
#pragma once

#include <cstdint>

#include "kernels/cuda/sample_block.cuh"

namespace fut::cuda {

enum class SampleStage { TopK, TopP, Draw };

struct RowSampler {
  SampleShared& s;
  const SampleParams& params;
  float* logits;  // of this block's ids
  std::uint32_t first_id;
  int num_ids;
  CodeOrder order;
  // Known once the row is read.
  std::uint64_t best = 0;  // code
  float largest = 0;
  float least = 0;
  std::uint32_t num_candidates = 0;
  std::uint32_t uniform = 0;  // of the draw, times 2^24
  // Candidates with a smaller code are out: those below the floor, and some that are equal to it.
  std::uint64_t last = 0;
  float floor = -kLargestLogit;
  float bins_per_logit = 1;
  unsigned parity = 0;

  __device__ __forceinline__ static void cluster_barrier() {
    __syncwarp();
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }

  // Every block's part. `part` is looked at in the first lanes of warp 0.
  __device__ __forceinline__ const Part* exchange(const Part& part) {
    parity ^= 1;
    if (threadIdx.x < kSampleCluster) {
      *ptx::in_block(&s.parts[parity][ptx::cluster_rank()], threadIdx.x) = part;
    }
    cluster_barrier();
    return s.parts[parity];
  }

  // The merged parts of all threads of all blocks.
  __device__ __forceinline__ Part merged(const Part& mine) {
    const Part of_warp = warp_merged(mine);
    if (threadIdx.x % 32 == 0) s.warp_parts[threadIdx.x / 32] = of_warp;
    __syncthreads();
    Part part = no_part();
    if (threadIdx.x < 32) {
      part = warp_merged(threadIdx.x < kSampleWarps ? s.warp_parts[threadIdx.x] : no_part());
    }
    const Part* parts = exchange(part);
    const unsigned lane = threadIdx.x % 32;
    return warp_merged(lane < kSampleCluster ? parts[lane] : no_part());
  }

  // ---- bins ---------------------------------------------------------------------------------------

  __device__ __forceinline__ std::uint32_t distance_bin(float logit) const {
    // Added to it, a number below it is rounded to an integer, which the lower bits hold.
    constexpr float kRounder = 0x1p23F;
    const float bin = fmaf(largest - logit, bins_per_logit, kRounder);
    return __float_as_uint(fminf(bin, kRounder + kSampleBins - 1)) % kSampleBins;
  }
  // No logit of this bin or of one before it is smaller.
  __device__ __forceinline__ float least_of_bin(std::uint32_t bin) const {
    if (bin == kSampleBins - 1) return -kLargestLogit;
    constexpr float kMargin = 1.001F;  // more than the roundings above
    return largest - static_cast<float>(bin + 1) / bins_per_logit * kMargin;
  }

  __device__ void choose_bins() {
    const float temperature = fmaxf(1.0F, params.temperature);
    const float range = fminf(largest - least, kLogitRange * temperature);
    bins_per_logit = fminf(fmaxf(kSampleBins / range, kFewestBins), kMostBins);
  }

  __device__ __forceinline__ void set_last(std::uint64_t code) {
    last = code;
    floor = fmaxf(logit_of(order.key(code)), -kLargestLogit);
  }

  __device__ __forceinline__ Measure measure_of(SampleStage stage) const {
    Measure measure = {};
    measure.best = largest;
    measure.bits = weight_bits_for(order.id_bits);
    if (stage == SampleStage::TopP && !params.temperature_first) {
      measure.inverse_temperature = 1;
    } else if (stage != SampleStage::TopK) {
      measure.inverse_temperature = 1 / static_cast<double>(params.temperature);
    }
    return measure;
  }

  __device__ std::uint64_t target_of(SampleStage stage, std::uint64_t total) const {
    if (stage == SampleStage::TopK) return static_cast<std::uint64_t>(params.top_k);
    if (stage == SampleStage::TopP) {
      const double wanted = static_cast<double>(params.top_p) * static_cast<double>(total);
      const std::uint64_t target = __double2ull_ru(wanted);
      return target > 1 ? target : 1;
    }
    // The sum has to exceed that share of the total.
    return ((__umul64hi(uniform, total) << 40) | (uniform * total >> 24)) + 1;
  }

  // min-p as the least logit that it keeps.
  __device__ std::uint64_t min_p_border() const {
    if (params.min_p <= 0) return 0;
    if (params.min_p >= 1) return best;
    const double temperature = params.temperature_first ? params.temperature : 1.0F;
    const double cut =
        static_cast<double>(largest) + temperature * log(static_cast<double>(params.min_p));
    const float logit = fmaxf(__double2float_ru(cut), -kLargestLogit);
    return order.code(key_of(logit), order.id_mask());
  }

  // ---- histograms ---------------------------------------------------------------------------------

  // visit(logits, first) for this thread's runs of four logits of which one is at least `lowest`; `first`
  // is the place of the first one.
  template <class Visit>
  __device__ __forceinline__ void for_each_four(float lowest, const Visit& visit) const {
#pragma unroll 1
    for (int i = 4 * static_cast<int>(threadIdx.x); i < num_ids; i += 4 * kSampleThreads) {
      const float4 four = *reinterpret_cast<const float4*>(logits + i);
      const float all[4] = {four.x, four.y, four.z, four.w};
      if (fmaxf(fmaxf(all[0], all[1]), fmaxf(all[2], all[3])) >= lowest) visit(all, i);
    }
  }
  __device__ __forceinline__ std::uint64_t code_at(float logit, int place) const {
    return order.code(key_of(logit), first_id + static_cast<std::uint32_t>(place));
  }
  __device__ __forceinline__ bool is_in(float logit, int place) const {
    return logit > floor || (logit == floor && code_at(logit, place) >= last);
  }

  // bin(logit, place) of every candidate that is at least `lowest`; kSampleBins and more: of none.
  // kTogether weights are computed at a time, as many as the registers allow.
  template <int kTogether, class Bin>
  __device__ __forceinline__ void fill(const Measure& measure, float lowest, const Bin& bin) {
    Histogram& h = s.histogram;
    for (int i = static_cast<int>(threadIdx.x); i < kSampleBins; i += kSampleThreads) {
      h.counts[i] = 0;
      h.low[i] = 0;
      h.high[i] = 0;
    }
    __syncthreads();
    const float least_weight = measure.counts() ? 0 : measure.least_logit();
    for_each_four(lowest, [&](const float(&four)[4], int first) {
#pragma unroll
      for (int some = 0; some < 4; some += kTogether) {
        std::uint32_t bins[kTogether];
        std::uint64_t weights[kTogether];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const float logit = four[some + j];
          const int place = first + some + j;
          bins[j] = is_in(logit, place) ? bin(logit, place) : kSampleBins;
          if (bins[j] < kSampleBins) atomicAdd(&h.counts[bins[j]], 1U);
        }
        if (measure.counts()) continue;
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const float logit = four[some + j];
          const bool counts = bins[j] < kSampleBins && logit >= least_weight;
          weights[j] = counts ? measure.weight(logit) : 0;
        }
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const auto low = static_cast<std::uint32_t>(weights[j]);
          auto high = static_cast<std::uint32_t>(weights[j] >> 32);
          if (low != 0 && atomicAdd(&h.low[bins[j]], low) > ~low) ++high;
          if (high != 0) atomicAdd(&h.high[bins[j]], high);
        }
      }
    });
    cluster_barrier();
  }

  // Where `before` and the sums of the bins reach the target, or, where that is 0,
  // what the stage makes of the total. `total` is set.
  __device__ __forceinline__ Crossing find_crossing(SampleStage stage, std::uint64_t before,
                                                    std::uint64_t& target, std::uint64_t& total) {
    const std::uint32_t rank = ptx::cluster_rank();
    constexpr std::uint32_t kBins = kSampleBins / kSampleCluster;
    const std::uint32_t bin = rank * kBins + threadIdx.x;
    std::uint32_t count = 0;
    std::uint64_t sum = 0;
    if (threadIdx.x < kBins) {
#pragma unroll 4
      for (std::uint32_t block = 0; block < kSampleCluster; ++block) {
        const Histogram* h = ptx::in_block(&s.histogram, block);
        count += h->counts[bin];
        if (stage == SampleStage::TopK) continue;
        sum += h->low[bin] + (static_cast<std::uint64_t>(h->high[bin]) << 32);
      }
      if (stage == SampleStage::TopK) sum = count;
    }
    const Running running = block_running(s, sum, count);
    const Part* parts = exchange({running.sum_of_all, 0, running.count_of_all, 0});
    total = 0;
    std::uint64_t sum_before = before + running.sum - sum;
    std::uint32_t count_before = running.count - count;
#pragma unroll
    for (std::uint32_t block = 0; block < kSampleCluster; ++block) {
      const Part& part = parts[block];
      total += part.wide;
      sum_before += block < rank ? part.wide : 0;
      count_before += block < rank ? part.count : 0;
    }
    if (target == 0) target = target_of(stage, total);
    if (sum_before < target && target <= sum_before + sum) {
      for (std::uint32_t block = 0; block < kSampleCluster; ++block) {
        *ptx::in_block(&s.crossings[parity], block) = {sum_before, bin, count_before, count};
      }
    }
    cluster_barrier();
    return s.crossings[parity];
  }

  // ---- lists --------------------------------------------------------------------------------------

  // Puts the candidates that wanted(logit, place) picks, kSampleList at most and none below `lowest`,
  // into block 0's list, in any order. Returns their number in block 0.
  template <class Wanted>
  __device__ __forceinline__ int gather(float lowest, const Wanted& wanted) {
    if (threadIdx.x == 0) s.own_count = 0;
    __syncthreads();
    for_each_four(fmaxf(lowest, floor), [&](const float(&four)[4], int first) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (!is_in(four[j], first + j) || !wanted(four[j], first + j)) continue;
        s.lists.own[atomicAdd(&s.own_count, 1U)] = code_at(four[j], first + j);
      }
    });
    __syncthreads();
    const std::uint32_t count = s.own_count;
    if (threadIdx.x == 0 && count > 0) {
      s.all_base = atomicAdd(ptx::in_block(&s.all_count, 0), count);
    }
    __syncthreads();
    if (count > 0) {
      std::uint64_t* all = ptx::in_block(s.lists.all, 0) + s.all_base;
      for (std::uint32_t i = threadIdx.x; i < count; i += kSampleThreads) all[i] = s.lists.own[i];
    }
    cluster_barrier();
    return static_cast<int>(s.all_count);
  }

  // Block 0: what is left to do once all candidates that can matter are in the list. `stage` is the
  // first one that is not done; `total` its total, known unless top-k comes first.
  __device__ std::int32_t finish(SampleStage stage, int count, std::uint64_t total) {
    const std::uint64_t* list = s.lists.all;
    sort_falling(s.lists.all, count);
    if (stage == SampleStage::TopK) count = min(count, params.top_k);
    if (params.top_p < 1) {
      const std::uint64_t target =
          stage == SampleStage::TopK ? 0 : target_of(SampleStage::TopP, total);
      count = 1 + list_border(SampleStage::TopP, count, 0, target);
    }
    const std::uint64_t border = min_p_border();
    if (border > 0) {
      int kept = 0;
      for (int first = 0; first < count; first += kSampleThreads) {
        const int i = first + static_cast<int>(threadIdx.x);
        kept += __syncthreads_count(i < count && list[i] >= border);
      }
      count = kept;
    }
    return order.id(list[list_border(SampleStage::Draw, count, 0, 0)]);
  }

  // The place in block 0's list, sorted, where `before` and the measures up to it reach `target`, or,
  // where that is 0, what the stage makes of the list's total. All threads of block 0.
  __device__ int list_border(SampleStage stage, int count, std::uint64_t before,
                             std::uint64_t target) {
    const std::uint64_t* list = s.lists.all;
    const Measure measure = measure_of(stage);
    const int tid = static_cast<int>(threadIdx.x);
    if (target == 0 && count > kSampleThreads) {
      target = target_of(stage, list_total(count, measure));
    }
    if (tid == 0) s.answer = static_cast<std::uint64_t>(count - 1);
#pragma unroll 1
    for (int first = 0; first < count; first += kSampleThreads) {
      const int i = first + tid;
      const std::uint64_t own = i < count ? measure.of(logit_of(order.key(list[i]))) : 0;
      const Running running = block_running(s, own, 0);
      if (target == 0) target = target_of(stage, running.sum_of_all);
      const std::uint64_t sum = before + running.sum;
      if (sum - own < target && target <= sum) s.answer = static_cast<std::uint64_t>(i);
      before += running.sum_of_all;
      __syncthreads();
      if (before >= target) break;
    }
    const int place = static_cast<int>(s.answer);
    __syncthreads();
    return place;
  }

  __device__ std::uint64_t list_total(int count, const Measure& measure) {
    std::uint64_t sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kSampleThreads) {
      sum += measure.of(logit_of(order.key(s.lists.all[i])));
    }
    return block_sum(s, sum);
  }

  // ---- stages -------------------------------------------------------------------------------------

  // The code of the border among the candidates of `wanted`, of which there are kSampleList at most.
  template <class Wanted>
  __device__ __forceinline__ std::uint64_t border_in_list(SampleStage stage, std::uint64_t before,
                                                          std::uint64_t target, float lowest,
                                                          const Wanted& wanted) {
    const int count = gather(lowest, wanted);
    std::uint64_t border = 0;
    if (ptx::cluster_rank() == 0) {
      sort_falling(s.lists.all, count);
      border = s.lists.all[list_border(stage, count, before, target)];
      if (threadIdx.x == 0) s.all_count = 0;
    }
    return broadcast(border);
  }

  // Block 0's value.
  __device__ __forceinline__ std::uint64_t broadcast(std::uint64_t value) {
    return exchange({value, 0, 0, 0})[0].wide;
  }

  // As border_in_list(), whatever the number: a histogram over the codes from `low` to `high`, one over
  // the codes of a bin of it, and so on.
  __device__ std::uint64_t border_by_codes(SampleStage stage, std::uint64_t before,
                                           std::uint64_t target, std::uint64_t low,
                                           std::uint64_t high) {
    for (;;) {
      const int shift = max(0, 64 - __clzll(static_cast<long long>(high - low)) - kBinBits);
      const float lowest = logit_of(order.key(low));
      fill<1>(measure_of(stage), lowest, [=, this](float logit, int place) {
        const std::uint64_t code = code_at(logit, place);
        return code < low || code > high ? static_cast<std::uint32_t>(kSampleBins)
                                         : static_cast<std::uint32_t>((high - code) >> shift);
      });
      std::uint64_t total = 0;
      const Crossing crossing = find_crossing(stage, before, target, total);
      before = crossing.sum_before;
      high -= static_cast<std::uint64_t>(crossing.bin) << shift;
      if (shift == 0) return high;
      const std::uint64_t width = 1ULL << shift;
      if (high - low >= width) low = high - width + 1;
      if (crossing.count > kSampleList) continue;
      return border_in_list(stage, before, target, lowest, [=, this](float logit, int place) {
        const std::uint64_t code = code_at(logit, place);
        return low <= code && code <= high;
      });
    }
  }

  // Moves `last` up to the stage's border. True: the rest was done as well, and block 0 has `token`.
  __device__ __forceinline__ bool run(SampleStage stage, std::int32_t& token) {
    fill<4>(measure_of(stage), floor, [this](float logit, int) { return distance_bin(logit); });
    std::uint64_t target = 0;
    std::uint64_t total = 0;
    const Crossing crossing = find_crossing(stage, 0, target, total);
    const std::uint32_t bin = crossing.bin;
    const float lowest = least_of_bin(bin);
    if (stage != SampleStage::Draw && crossing.count_before + crossing.count <= kSampleList) {
      const int count =
          gather(lowest, [=, this](float logit, int) { return distance_bin(logit) <= bin; });
      if (ptx::cluster_rank() == 0) token = finish(stage, count, total);
      return true;
    }
    const auto in_bin = [=, this](float logit, int) { return distance_bin(logit) == bin; };
    if (crossing.count <= kSampleList) {
      set_last(border_in_list(stage, crossing.sum_before, target, lowest, in_bin));
      return false;
    }
    Part range = no_part();
    for_each_four(fmaxf(lowest, floor), [&](const float(&four)[4], int first) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (!is_in(four[j], first + j) || !in_bin(four[j], first + j)) continue;
        range.wide = max(range.wide, code_at(four[j], first + j));
        range.low = min(range.low, key_of(four[j]));
      }
    });
    range = merged(range);
    const std::uint64_t low = max(last, order.code(range.low, order.id_mask()));
    set_last(border_by_codes(stage, crossing.sum_before, target, low, range.wide));
    return false;
  }

  // The token in block 0. All blocks.
  __device__ __forceinline__ std::int32_t draw() {
    choose_bins();
    std::int32_t token = kNoToken;
    const bool top_k =
        params.top_k > 0 && static_cast<std::uint32_t>(params.top_k) < num_candidates;
#pragma unroll 1
    for (int i = top_k ? 0 : 1; i < 3; ++i) {
      const auto stage = static_cast<SampleStage>(i);
      if (stage == SampleStage::TopP && params.top_p >= 1) continue;
      if (stage == SampleStage::Draw) set_last(max(last, min_p_border()));
      if (run(stage, token)) return token;
    }
    return order.id(last);
  }

  static constexpr int kBinBits = 11;
  static_assert(kSampleBins == 1 << kBinBits);
  static constexpr float kLogitRange = 50;
  static constexpr float kFewestBins = 1e-30F;
  static constexpr float kMostBins = 1e30F;
  static constexpr float kLargestLogit = 3.402823466e38F;
};

}  // namespace fut::cuda
