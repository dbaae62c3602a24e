// The main loop of INT4 projections for a few tokens: Y = X W^T with W as layout/int4_tile.h has it. Operands
// and epilogues are parameters; what they are is in the ops' own files. More tokens: int4_batch_gemm.cuh.
//
// work     A block takes a contiguous run of strips and all of K, each of its warps one of the 16 segments
//          of K. Sums of all strips, or of as many as there is room for, meet in shared memory at the end.
// weights  see int4_weight_ring.cuh
// tokens   F16, in shared memory, in the order of operand B of mma: for 64 columns lane t has the 16 halves
//          that it needs of a token side by side.
// sums     A group's products are added by the tensor core in one chain, which starts from the bias of the
//          stored codes (once for all strips, by a product as well); times scale, groups ascending;
//          segments merged as layout/k_segments.h says. None of it depends on the number of tokens, of
//          blocks or of pieces: the same bits always.
// bound    bytes of the weights
//
// What was tried, and in vain: README.md, "The INT4 main loop" and "Where one token's time goes".
#pragma once

#include <climits>
#include <cstdint>

#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/cuda/int4_output.h"
#include "kernels/cuda/int4_record.cuh"
#include "kernels/cuda/int4_weight_ring.cuh"
#include "kernels/cuda/ptx/async_copy_4.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/int4_mma.cuh"
#include "kernels/cuda/ptx/warp.cuh"
#include "kernels/cuda/rms.cuh"
#include "kernels/cuda/tree_sum.cuh"

namespace fut::cuda {

// Where 4 columns of a token go in shared memory, in halves from the token's begin: columns k, k + 1,
// and 16 halves on k + 2, k + 3. k is a multiple of 4.
__device__ __forceinline__ int operand_offset(int k) {
  const int column = k % 16;
  return k / 64 * 64 + column % 8 / 2 * 16 + k % 64 / 16 * 4 + column / 8 * 2;
}

// An epilogue has
//   bool store(output, lower, upper, r, inputs): the two sums, r of the operand's norm; whether
//     something is to be told to finish()
//   kFetches: int look_ahead(output) loads what fetch() needs, and fetch(output, ahead, place) starts
//     copies to `place`, 16 bytes that store() sees as `inputs`
//   kFinishes: begin() of every thread before, finish(told) of every thread after all outputs; told: of its
//     own, or of any of its block's
template <class Config, class Operand, class Epilogue>
class Int4Gemm {
  static_assert(kInt4GemmThreads / 32 == layout::kNumKSegments, "a warp for each segment");

 public:
  __device__ Int4Gemm(const Int4GemmArgs& args, const Operand& operand, const Epilogue& epilogue,
                      std::uint8_t* shared)
      : args_(args),
        operand_(operand),
        epilogue_(epilogue),
        layout_(args.layout),
        shared_(shared),
        warp_(ptx::warp_index()),
        first_strip_(int4_share(args.num_strips, blockIdx.x, gridDim.x)),
        end_strip_(int4_share(args.num_strips, blockIdx.x + 1, gridDim.x)),
        first_group_(layout::k_segment_begin(warp_, args.num_groups)),
        end_group_(layout::k_segment_begin(warp_ + 1, args.num_groups)) {}

  __device__ void run() {
    WeightRing<Config> ring(
        args_,
        ptx::shared_address(shared_ + layout_.ring) + warp_ * int4_ring_bytes(Config::kPieceBytes),
        {first_strip_, end_strip_, first_group_, end_group_});
    ptx::take_turn();
    if constexpr (Epilogue::kFinishes) epilogue_.begin();
    const int ahead = look_ahead(first_strip_);
    stage_tokens();
    fetch_inputs(first_strip_, ahead);
    __syncwarp();  // a warp reads what it wrote itself
    find_operands();
    make_biases();
    __syncwarp();
    for (int first = first_strip_; first < end_strip_; first += args_.round_strips) {
      const int end = min(first + args_.round_strips, end_strip_);
      for (int strip = first; strip < end; ++strip) {
        float sums[4];
        add_segment(ring, sums);
        store_sums(strip - first, sums);
      }
      finish_block(first);
      if (end < end_strip_) fetch_inputs(end, look_ahead(end));
    }
    if constexpr (Epilogue::kFinishes) epilogue_.finish(noticed_);
  }

 private:
  static constexpr int kBlocks = Config::kGroup / 64;  // of 64 columns, in a group

  // ---- tokens -----------------------------------------------------------------------------------

  // Brings this warp's columns of the tokens into shared memory, and for a norm the sum of their squares.
  // Some loads at a time are under way together: of one token's columns where there is one token, else of
  // several tokens.
  __device__ void stage_tokens() {
    constexpr int kLoads = Operand::kNormalised ? 2 : 8;  // as registers allow
    if (args_.num_tokens == 1) {
      stage_segment<1, kLoads>();
    } else {
      stage_segment<kLoads / 2, 2>();
    }
  }

  template <int kTokens, int kLoads>
  __device__ void stage_segment() {
    const int begin = first_group_ * Config::kGroup;
    const int end = end_group_ * Config::kGroup;
    for (int first = 0; first < args_.num_tokens; first += kTokens) {
      float squares[kTokens] = {};
#pragma unroll 1
      for (int k = begin; k < end; k += 128 * kLoads) {
        stage_columns<kTokens, kLoads>(first, k + threadIdx.x % 32 * 4, end, squares);
      }
      if constexpr (Operand::kNormalised) {
        for (int j = 0; j < kTokens; ++j) publish_squares(first + j, squares[j]);
      }
    }
  }

  template <int kTokens, int kLoads>
  __device__ void stage_columns(int first_token, int k, int end, float (&squares)[kTokens]) {
    uint2 halves[kTokens][kLoads];
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
#pragma unroll
      for (int h = 0; h < kLoads; ++h) {
        const int token = first_token + j;
        const int column = k + 128 * h;
        halves[j][h] = make_uint2(0, 0);
        if (token < args_.num_tokens && column < end) {
          halves[j][h] = operand_.load(token, column, squares[j]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
#pragma unroll
      for (int h = 0; h < kLoads; ++h) {
        const int token = first_token + j;
        const int column = k + 128 * h;
        if (token >= args_.num_tokens || column >= end) continue;
        put_columns(token, column, halves[j][h]);
      }
    }
  }

  __device__ __forceinline__ void put_columns(int token, int column, uint2 halves) const {
    auto* row =
        reinterpret_cast<std::uint32_t*>(shared_ + layout_.tokens + token * layout_.token_stride);
    const int word = operand_offset(column) / 2;
    row[word] = halves.x;
    row[word + 8] = halves.y;
  }

  __device__ float* squares_of(int segment, int token) const {
    return reinterpret_cast<float*>(shared_ + layout_.squares) + segment * kFewTokens + token;
  }

  __device__ void publish_squares(int token, float squares) {
    squares = sum_of_lanes(squares);
    if (token < args_.num_tokens && threadIdx.x % 32 == 0) *squares_of(warp_, token) = squares;
  }

  // ---- products ---------------------------------------------------------------------------------

  // Where this lane finds operand B of a token: of column 0.
  __device__ std::uint32_t operand_of(int token) const {
    return ptx::shared_address(shared_ + layout_.tokens) + token * layout_.token_stride +
           static_cast<int>(threadIdx.x) % 4 * 32;
  }
  // Two tiles of 16 columns of a group: number q of them.
  __device__ static uint4 load_operand(std::uint32_t operand, int group, int q) {
    return ptx::load_shared_16(operand + group * (2 * Config::kGroup) + q / 2 * 128 + q % 2 * 16);
  }

  // A column of mma's tile past the last token reads that one's, and its sums are dropped.
  __device__ void find_operands() {
    operand_address_ =
        operand_of(min(static_cast<int>(threadIdx.x) % 32 / 4, args_.num_tokens - 1));
  }

  // Of rows g of a strip, for a group and this lane's two columns; of those without a token anything.
  __device__ float2* bias(int group) const {
    return reinterpret_cast<float2*>(shared_ + layout_.biases) + group * 4 + threadIdx.x % 4;
  }

  // What the sums of each group of this warp's segment start from. The tile of mma has a column for each of
  // eight tokens; where there are fewer, columns of further groups take the places.
  __device__ void make_biases() const {
    static_assert(kFewTokens == 8, "columns of the tile");
    const int log2_groups = 3 - args_.log2_columns;  // of a tile
#pragma unroll 1
    for (int first = first_group_; first < end_group_; first += 1 << log2_groups) {
      const int column = static_cast<int>(threadIdx.x) % 32 / 4;
      const int group = min(first + group_of(column), end_group_ - 1);
      const std::uint32_t operand = operand_of(min(token_of(column), args_.num_tokens - 1));
      std::uint32_t a[4];
      ptx::bias_operand(a);
      float chain[4] = {};
#pragma unroll
      for (int q = 0; q < 2 * kBlocks; ++q) {
        const uint4 b = load_operand(operand, group, q);
        ptx::mma_m16n8k16(chain, a, b.x, b.y);
        ptx::mma_m16n8k16(chain, a, b.z, b.w);
      }
      const int lane = threadIdx.x % 32;
      if (lane < 4) {
        store_bias(first, 2 * lane, chain[0]);
        store_bias(first, 2 * lane + 1, chain[1]);
      }
    }
  }
  // A column of such a tile: which of its groups, and which token.
  __device__ int group_of(int column) const {
    return column >> args_.log2_columns;
  }
  __device__ int token_of(int column) const {
    return column & ((1 << args_.log2_columns) - 1);
  }
  __device__ void store_bias(int first, int column, float value) const {
    const int group = first + group_of(column);
    if (group >= end_group_) return;
    auto* biases = reinterpret_cast<float*>(shared_ + layout_.biases);
    biases[group * kFewTokens + token_of(column)] = value;
  }

  // The sums of this warp's segment of a strip, in units of kInt4LowUnit and kInt4HighUnit.
  __device__ __forceinline__ void add_segment(WeightRing<Config>& ring, float (&sums)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[j] = 0;
#pragma unroll 1
    for (int group = first_group_; group < end_group_; group += Config::kPieceGroups) {
      multiply_piece(ring, group, sums);
    }
  }

  __device__ __forceinline__ void multiply_piece(WeightRing<Config>& ring, int group,
                                                 float (&sums)[4]) {
    constexpr int kGroups = Config::kPieceGroups;
    const std::uint32_t piece = ring.wait();
    if (group + kGroups <= end_group_) {
#pragma unroll
      for (int i = 0; i < kGroups; i += 2) {
        multiply_groups<2>(piece + i * Config::kRecordBytes, group + i, sums);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        if (i > 0 && group + i >= end_group_) break;
        multiply_groups<1>(piece + i * Config::kRecordBytes, group + i, sums);
      }
    }
    // Loads of all lanes come before the copy that takes their place: release() has the barrier of the
    // warp and the fence between the two proxies that say so. Without the fence results were wrong now
    // and then.
    ring.release();
  }

  // Of kCount groups side by side, so that the tensor core has as many chains to work at.
  template <int kCount>
  __device__ __forceinline__ void multiply_groups(std::uint32_t records, int group,
                                                  float (&sums)[4]) {
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
#pragma unroll
      for (int q = 0; q < 2; ++q) {  // two tiles of 16 columns at a time
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          const uint4 columns = load_operand(operand_address_, group + i, 2 * b + q);
          std::uint32_t a[4];
          ptx::unpack_codes(a, q == 0 ? words[i].x : words[i].z);
          ptx::mma_m16n8k16(chain[i], a, columns.x, columns.y);
          ptx::unpack_codes(a, q == 0 ? words[i].y : words[i].w);
          ptx::mma_m16n8k16(chain[i], a, columns.z, columns.w);
        }
      }
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

  // ---- sums of a block ---------------------------------------------------------

  // [strip of the round][segment][row][token], see partial_offset().
  __device__ float* partial(int strip, int segment) const {
    return reinterpret_cast<float*>(shared_ + layout_.partial) +
           args_.partial_offset(strip, segment);
  }

  __device__ __forceinline__ void store_sums(int strip, const float (&sums)[4]) const {
    const int tokens = args_.num_tokens;
    const int token = threadIdx.x % 4 * 2;
    float* row = partial(strip, warp_) + threadIdx.x % 32 / 4 * tokens + token;
    if (token < tokens) {
      row[0] = sums[0];
      row[8 * tokens] = sums[2];
    }
    if (token + 1 < tokens) {
      row[1] = sums[1];
      row[8 * tokens + 1] = sums[3];
    }
  }

  __device__ void finish_block(int first) {
    __syncthreads();
    if constexpr (Epilogue::kFetches) ptx::wait_for_copies();
    if (args_.log2_lanes > 0) {
      finish_outputs<4>(first);
    } else {
      finish_outputs<1>(first);
    }
    // Nobody writes the next round's sums where others still read.
    if (first + args_.round_strips < end_strip_) __syncthreads();
  }

  // kLanes lanes have a pair of outputs.
  template <int kLanes>
  __device__ __forceinline__ void finish_outputs(int first) {
#pragma unroll 1
    for (int i = threadIdx.x / kLanes; i < num_outputs(first); i += kInt4GemmThreads / kLanes) {
      const Int4Output out = output(first, i);
      if (kLanes == 1 && out.token >= args_.num_tokens) continue;
      const float2 sums = pair_sums<kLanes>(out, first);
      const float r = row_scale<kLanes>(out.token);
      if (kLanes > 1 && threadIdx.x % kLanes != 0) continue;
      noticed_ |= epilogue_.store(out, sums.x * (1 / layout::kInt4LowUnit),
                                  sums.y * (1 / layout::kInt4HighUnit), r, inputs(i));
    }
  }

  // Of all segments: of rows g and g + 8. Of four lanes each adds up half of the segments of one row, which
  // are half of the same tree.
  template <int kLanes>
  __device__ __forceinline__ float2 pair_sums(const Int4Output& out, int first) const {
    static_assert(kLanes == 1 || kLanes == 4);
    constexpr int kHalf = layout::kNumKSegments / 2;
    const int tokens = args_.num_tokens;
    const int upper_half = args_.partial_offset(0, kHalf);
    const float* rows = partial(out.strip - first, 0) + out.g * tokens + out.token;
    const auto half_sum = [&](const float* values) { return tree_sum<kHalf>(values, 16 * tokens); };
    if constexpr (kLanes == 1) {
      const float* upper_rows = rows + 8 * tokens;
      return make_float2(half_sum(rows) + half_sum(rows + upper_half),
                         half_sum(upper_rows) + half_sum(upper_rows + upper_half));
    } else {
      if (threadIdx.x & 1) rows += upper_half;
      if (threadIdx.x & 2) rows += 8 * tokens;
      const float sum = add_lanes<2>(half_sum(rows));
      return make_float2(sum, __shfl_xor_sync(0xFFFFFFFFU, sum, 2));
    }
  }
  // Of lanes side by side. By whole warps: a strip's outputs of one token are a warp's.
  template <int kLanes>
  __device__ static float add_lanes(float sum) {
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
      sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
    }
    return sum;
  }

  // Pairs of outputs of the round that begins with strip `first`, of columns that may have no token.
  __device__ int num_outputs(int first) const {
    return min(args_.round_strips, end_strip_ - first) << (3 + args_.log2_columns);
  }
  __device__ Int4Output output(int first, int i) const {
    return {first + (i >> (3 + args_.log2_columns)), i % 8, token_of(i / 8)};
  }
  __device__ float* inputs(int i) const {
    return reinterpret_cast<float*>(shared_ + layout_.inputs) + 4 * i;
  }

  // Of the lanes that share a pair of outputs the first fetches its inputs and stores it: copies are waited for by
  // those who started them.
  __device__ int first_output() const {
    const int lanes = 1 << args_.log2_lanes;
    return threadIdx.x % lanes == 0 ? threadIdx.x / lanes : INT_MAX;
  }

  // Called early, as what it loads is waited for: what fetch_inputs() needs for a thread's first output.
  __device__ int look_ahead(int first) const {
    if constexpr (Epilogue::kFetches) {
      const int i = first_output();
      if (i >= num_outputs(first)) return 0;
      const Int4Output out = output(first, i);
      return out.token < args_.num_tokens ? epilogue_.look_ahead(out) : 0;
    } else {
      return 0;
    }
  }
  __device__ void fetch_inputs(int first, int ahead) const {
    if constexpr (Epilogue::kFetches) {
      const int step = kInt4GemmThreads >> args_.log2_lanes;
      for (int i = first_output(); i < num_outputs(first); i += step) {
        const Int4Output out = output(first, i);
        if (out.token >= args_.num_tokens) continue;
        if (i >= step) ahead = epilogue_.look_ahead(out);
        epilogue_.fetch(out, ahead, ptx::shared_address(inputs(i)));
      }
    }
  }

  // 1 / rms of a token, for operands that are normalised afterwards.
  template <int kLanes>
  __device__ float row_scale(int token) const {
    if constexpr (Operand::kNormalised) {
      constexpr int kShare = layout::kNumKSegments / kLanes;
      // Not by squares_of(), which costs four registers here.
      const auto* squares = reinterpret_cast<const float*>(shared_ + layout_.squares) + token +
                            threadIdx.x % kLanes * kShare * kFewTokens;
      const float sum = add_lanes<kLanes>(tree_sum<kShare>(squares, kFewTokens));
      return inverse_rms(sum, args_.num_groups * Config::kGroup, operand_.eps);
    } else {
      return 1.0F;
    }
  }

  const Int4GemmArgs& args_;
  const Operand& operand_;
  const Epilogue& epilogue_;
  const Int4GemmLayout& layout_;
  std::uint8_t* shared_;
  int warp_;
  int first_strip_, end_strip_;
  int first_group_, end_group_;  // of this warp's segment
  std::uint32_t operand_address_ = 0;
  bool noticed_ = false;  // by the epilogue's store()
};

template <class Config, class Operand, class Epilogue>
__global__ void __launch_bounds__(kInt4GemmThreads, Config::kLeastBlocks)
    int4_gemm_kernel(const __grid_constant__ Int4GemmArgs args,
                     const __grid_constant__ Operand operand,
                     const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(1024) std::uint8_t int4_gemm_shared[];
  Int4Gemm<Config, Operand, Epilogue>(args, operand, epilogue, int4_gemm_shared).run();
}

}  // namespace fut::cuda
