// lm_head on the GPU, BF16 and INT8 weights, and the best logits once more from a BF16 matrix. Contract
// in ops.h.
// launch  a row product (row_gemm.cuh; 9 to 32 rows of INT8: row_tile_gemm.cuh); with rescoring a block of 1024
//         threads for each row of logits, which finds the largest, then a warp for each of them. Dependent
//         launches.
// bound   memory: bytes of the matrix, once for each 32 rows; rescoring reads a row of logits twice
#include <algorithm>

#include "kernels/cuda/head_project.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/row_formats.cuh"
#include "kernels/cuda/row_gemm_launch.cuh"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/row_project.h"

namespace fut::cuda {
namespace {

constexpr const char* kOp = "lm_head";
constexpr int kSelectThreads = 1024;
constexpr int kSelectWarps = kSelectThreads / 32;
constexpr int kMaxCandidates = kSelectThreads;
constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kRescoreThreads = 256;
constexpr int kRescoreWarps = kRescoreThreads / 32;
constexpr int kRescored = static_cast<int>(kRescoredLogits);

// Rises with the logit; zeros of both signs are one, and a NaN is the least.
__device__ std::uint32_t rank_of(float logit) {
  if (logit == 0) logit = 0.0F;
  if (isnan(logit)) logit = -INFINITY;
  const std::uint32_t bits = __float_as_uint(logit);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

// Finds the kRescored best of one row: their ids, in no order that means anything.
class LargestLogits {
 public:
  struct Shared {
    union {
      int counts[kDigits];
      struct {
        std::uint32_t ranks[kMaxCandidates];
        std::int32_t ids[kMaxCandidates];
      } candidates;
    };
    std::uint32_t group_best[kRescored];
    int num_candidates;
    int warp_ties[kSelectWarps];
    int digit, wanted, num_found;
  };

  __device__ LargestLogits(const float* logits, int vocab, std::int32_t* ids, Shared& shared)
      : logits_(logits), vocab_(vocab), ids_(ids), s_(shared) {}

  __device__ void run() {
    find_candidates();
    if (s_.num_candidates <= kMaxCandidates) {
      take_candidates();
    } else {
      take_by_radix();
    }
  }

 private:
  // Calls use(id, rank) for all ids that are this thread's, some loads at a time.
  template <class Use>
  __device__ void for_each_rank(const Use& use) const {
    constexpr int kLoads = 16;
    for (int first = threadIdx.x; first < vocab_; first += kLoads * kSelectThreads) {
      float v[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int id = first + i * kSelectThreads;
        v[i] = id < vocab_ ? logits_[id] : 0.0F;
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int id = first + i * kSelectThreads;
        if (id < vocab_) use(id, rank_of(v[i]));
      }
    }
  }

  // All that are no worse than the best of each of kRescored groups: as many as wanted at least, and
  // seldom many more.
  __device__ void find_candidates() {
    constexpr int kGroup = kSelectThreads / kRescored;  // threads
    std::uint32_t best = 0;
    for_each_rank([&](int, std::uint32_t rank) { best = max(best, rank); });
#pragma unroll
    for (int distance = kGroup / 2; distance >= 1; distance /= 2) {
      best = max(best, __shfl_xor_sync(0xFFFFFFFFU, best, distance));
    }
    if (threadIdx.x % kGroup == 0) s_.group_best[threadIdx.x / kGroup] = best;
    if (threadIdx.x == 0) s_.num_candidates = 0;
    __syncthreads();
    std::uint32_t least = s_.group_best[0];
    for (int i = 1; i < kRescored; ++i) least = min(least, s_.group_best[i]);
    for_each_rank([&](int id, std::uint32_t rank) {
      if (rank < least) return;
      const int place = atomicAdd(&s_.num_candidates, 1);
      if (place >= kMaxCandidates) return;
      s_.candidates.ranks[place] = rank;
      s_.candidates.ids[place] = id;
    });
    __syncthreads();
  }

  // Each candidate counts those before it.
  __device__ void take_candidates() {
    const int count = s_.num_candidates;
    const int own = threadIdx.x;
    if (own >= count) return;
    const std::uint32_t rank = s_.candidates.ranks[own];
    const std::int32_t id = s_.candidates.ids[own];
    int before = 0;
    for (int i = 0; i < count; ++i) {
      const std::uint32_t other = s_.candidates.ranks[i];
      before += other > rank || (other == rank && s_.candidates.ids[i] < id) ? 1 : 0;
    }
    if (before < kRescored) ids_[before] = id;
  }

  // However many are alike: digit by digit of their ranks.
  __device__ void take_by_radix() {
    if (threadIdx.x == 0) {
      s_.wanted = kRescored;
      s_.num_found = 0;
    }
    __syncthreads();
    // From the highest digit on: the rank of the last one that is taken.
    std::uint32_t rank = 0;
    int known_bits = 0;
    while (known_bits < 32) {
      const int bits = min(kDigitBits, 32 - known_bits);
      find_digit(rank, known_bits, bits);
      known_bits += bits;
      rank |= static_cast<std::uint32_t>(s_.digit) << (32 - known_bits);
    }
    take(rank);
  }

  // Of the logits that begin with the known bits of `rank`: the digit in which the last wanted one
  // lies, and how many are wanted of those with that digit.
  __device__ void find_digit(std::uint32_t rank, int known_bits, int bits) {
    for (int i = threadIdx.x; i < kDigits; i += kSelectThreads) s_.counts[i] = 0;
    __syncthreads();
    const int shift = 32 - known_bits - bits;
    for_each_rank([&](int, std::uint32_t own) {
      const bool begins_so = known_bits == 0 || (own ^ rank) >> (32 - known_bits) == 0;
      if (begins_so) atomicAdd(&s_.counts[own >> shift & ((1U << bits) - 1)], 1);
    });
    __syncthreads();
    if (threadIdx.x < 32) choose_digit(1 << bits);
    __syncthreads();
  }

  // One warp walks down from the highest digit, 32 at a time.
  __device__ void choose_digit(int num_digits) {
    const int lane = threadIdx.x;
    int wanted = s_.wanted;
    for (int top = num_digits - 1; top >= 0; top -= 32) {
      const int own = s_.counts[top - lane];
      int sum = own;  // of this digit and the higher ones
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xFFFFFFFFU, sum, distance);
        if (lane >= distance) sum += other;
      }
      const unsigned reached = __ballot_sync(0xFFFFFFFFU, sum >= wanted);
      if (reached != 0) {
        if (lane == __ffs(static_cast<int>(reached)) - 1) {
          s_.digit = top - lane;
          s_.wanted = wanted - (sum - own);
        }
        return;
      }
      wanted -= __shfl_sync(0xFFFFFFFFU, sum, 31);
    }
  }

  // All above `rank`, and of its equals the lowest ids. A warp looks at a run of ids.
  __device__ void take(std::uint32_t rank) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int run = (vocab_ + kSelectThreads - 1) / kSelectThreads * 32;
    const int begin = warp * run;
    const int end = min(begin + run, vocab_);
    int ties = 0;
    for (int first = begin; first < end; first += 32) {
      const int id = first + lane;
      const std::uint32_t own = id < end ? rank_of(logits_[id]) : 0;
      if (id < end && own > rank) ids_[atomicAdd(&s_.num_found, 1)] = id;
      ties += __popc(__ballot_sync(0xFFFFFFFFU, id < end && own == rank));
    }
    if (lane == 0) s_.warp_ties[warp] = ties;
    __syncthreads();
    int before = 0;
    for (int w = 0; w < warp; ++w) before += s_.warp_ties[w];
    const int num_above = kRescored - s_.wanted;
    for (int first = begin; first < end && before < s_.wanted; first += 32) {
      const int id = first + lane;
      const bool is_tie = id < end && rank_of(logits_[id]) == rank;
      const unsigned all = __ballot_sync(0xFFFFFFFFU, is_tie);
      const int place = before + __popc(all & ((1U << lane) - 1));
      if (is_tie && place < s_.wanted) ids_[num_above + place] = id;
      before += __popc(all);
    }
  }

  const float* logits_;
  int vocab_;
  std::int32_t* ids_;
  Shared& s_;
};

// ids[row][kRescored]; a vocabulary that is no larger is taken whole, -1 past its end.
__global__ void __launch_bounds__(kSelectThreads)
    select_logits_kernel(MatrixView<float> logits, std::int32_t* ids) {
  __shared__ LargestLogits::Shared shared;
  ptx::take_turn();
  const std::int64_t row = blockIdx.x;
  const int vocab = static_cast<int>(logits.cols);
  std::int32_t* own_ids = ids + row * kRescored;
  if (vocab <= kRescored) {
    for (int i = threadIdx.x; i < kRescored; i += kSelectThreads) own_ids[i] = i < vocab ? i : -1;
    return;
  }
  LargestLogits(logits.data + row * logits.row_stride, vocab, own_ids, shared).run();
}

// out[row][id] = dot(BF16(x * r), W[id]), one warp for each id. The order of additions is the lanes'.
__global__ void __launch_bounds__(kRescoreThreads)
    rescore_logits_kernel(const __grid_constant__ RowTokens tokens, const std::uint16_t* weight,
                          int cols, const std::int32_t* ids, MatrixView<float> out) {
  __shared__ float warp_squares[kRescoreWarps];
  ptx::take_turn();
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int row = static_cast<int>(blockIdx.y);
  const std::int64_t begin = tokens.begin(row);
  float squares = 0;
  for (int k = static_cast<int>(threadIdx.x) * 4; k < cols; k += 4 * kRescoreThreads) {
    squares = add_squares(tokens.load<false>(begin + k), squares);
  }
  squares = sum_of_lanes(squares);
  if (lane == 0) warp_squares[warp] = squares;
  __syncthreads();
  const float r = inverse_rms(tree_sum<kRescoreWarps>(warp_squares, 1), cols, tokens.eps);
  const std::int32_t id =
      ids[row * kRescored + static_cast<int>(blockIdx.x) * kRescoreWarps + warp];
  if (id < 0) return;
  const std::uint16_t* w = weight + static_cast<std::int64_t>(id) * cols;
  float sum = 0;
  for (int k = lane * 4; k < cols; k += 4 * 32) {
    const float4 v = tokens.load<false>(begin + k);
    const uint2 pairs = *reinterpret_cast<const uint2*>(w + k);
    const auto rounded = [r](float x) { return bf16_to_f32(f32_to_bf16(x * r)); };
    sum = fmaf(rounded(v.x), __uint_as_float(pairs.x << 16), sum);
    sum = fmaf(rounded(v.y), __uint_as_float(pairs.x & 0xFFFF0000U), sum);
    sum = fmaf(rounded(v.z), __uint_as_float(pairs.y << 16), sum);
    sum = fmaf(rounded(v.w), __uint_as_float(pairs.y & 0xFFFF0000U), sum);
  }
  sum = sum_of_lanes(sum);
  if (lane == 0) out.data[row * out.row_stride + id] = sum;
}

void rescore(const LmHeadArgs& a, LaunchContext& context) {
  const RowMatrix matrix = row_matrix(kOp, {a.rescoring});
  auto* ids = static_cast<std::int32_t*>(context.scratch(
      ScratchUse::RowOperand, static_cast<std::size_t>(a.num_rows * kRescoredLogits) * 4));
  LaunchShape select;
  select.grid = static_cast<unsigned>(a.num_rows);
  select.block = kSelectThreads;
  launch_dependent(kOp, select_logits_kernel, select, context.handle(), a.out, ids);
  RowTokens tokens = row_tokens(a.x, 0);
  tokens.rows = a.rows;
  tokens.eps = a.eps;
  LaunchShape dots;
  dots.grid = dim3(kRescored / kRescoreWarps, static_cast<unsigned>(a.num_rows));
  dots.block = kRescoreThreads;
  launch_dependent(kOp, rescore_logits_kernel, dots, context.handle(), tokens,
                   reinterpret_cast<const std::uint16_t*>(matrix.parts[0]), matrix.cols, ids,
                   a.out);
}

// As many rows at a time as one launch takes; the few that are left go to the product for few rows.
void project(RowProjection p, LaunchContext& context) {
  const std::int64_t end = p.first + p.count;
  while (p.first < end) {
    p.count = std::min<std::int64_t>(end - p.first, kMaxRowTokens);
    if (has_head_project(p, context)) {
      head_project(p, context);
    } else {
      row_project(p, context);
    }
    p.first += p.count;
    p.out.data += p.count * p.out.row_stride;
  }
}

}  // namespace

void row_lm_head(const LmHeadArgs& a, LaunchContext& context) {
  RowProjection p;
  p.op = kOp;
  p.x = a.x;
  p.rows = a.rows;
  p.count = a.num_rows;
  p.eps = a.eps;
  p.matrix = row_matrix(kOp, a.weight);
  p.is_int8 = std::holds_alternative<Int8Matrix>(a.weight);
  p.out = a.out;
  project(p, context);
  if (a.rescoring.data != nullptr) rescore(a, context);
}

}  // namespace fut::cuda
