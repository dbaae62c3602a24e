// The main loop of INT4 projections for a few tokens: Y = X W^T with W as layout/int4_tile.h has it. Operands
// and epilogues are parameters; what they are is in the ops' own files. More tokens: int4_batch_gemm.cuh.
//
// work     A block takes a contiguous run of strips and all of K, each of its warps one of the 16 segments
//          of K. Sums of all strips, or of as many as there is room for, meet in shared memory at the end.
// weights  see int4_weight_ring.cuh
// tokens   see int4_tokens.cuh
// sums     of a segment int4_products.cuh, segments merged as layout/k_segments.h says. None of it depends
//          on the number of tokens, of blocks or of pieces: the same bits always.
// bound    bytes of the weights; shared memory leaves room for one block a multiprocessor
#pragma once

#include <cstdint>

#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/cuda/int4_output.h"
#include "kernels/cuda/int4_products.cuh"
#include "kernels/cuda/int4_tokens.cuh"
#include "kernels/cuda/int4_weight_ring.cuh"
#include "kernels/cuda/ptx/async_copy_4.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/warp.cuh"
#include "kernels/cuda/rms.cuh"
#include "kernels/cuda/tree_sum.cuh"

namespace fut::cuda {

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
        args_, ptx::shared_address(shared_ + layout_.barriers) + warp_ * kFewTokenStages * 8,
        ptx::shared_address(shared_ + layout_.ring) + warp_ * kFewTokenStages * Config::kPieceBytes,
        {first_strip_, end_strip_, first_group_, end_group_});
    ptx::take_turn();
    if constexpr (Epilogue::kFinishes) epilogue_.begin();
    const int ahead = look_ahead(first_strip_);
    stage_tokens();
    fetch_inputs(first_strip_, ahead);
    __syncwarp();  // a warp reads what it wrote itself
    const Int4Products<Config> products = this->products();
    products.template make_biases<1>(first_group_, end_group_);
    __syncwarp();
    for (int first = first_strip_; first < end_strip_; first += args_.round_strips) {
      const int end = min(first + args_.round_strips, end_strip_);
      for (int strip = first; strip < end; ++strip) {
        float sums[4];
        add_segment(products, ring, sums);
        store_sums(strip - first, sums);
      }
      finish_block(first);
      if (end < end_strip_) fetch_inputs(end, look_ahead(end));
    }
    if constexpr (Epilogue::kFinishes) epilogue_.finish(noticed_);
  }

 private:
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
    Int4Tokens(shared_ + layout_.tokens, layout_.token_stride, args_.num_tokens,
               reinterpret_cast<float*>(shared_ + layout_.squares))
        .template stage<kTokens, kLoads>(operand_, warp_, first_group_ * Config::kGroup,
                                         end_group_ * Config::kGroup);
  }

  // ---- products ---------------------------------------------------------------------------------

  // A token past the last one reads the last one's, and its sums are dropped.
  [[nodiscard]] __device__ Int4Products<Config> products() const {
    const int token = min(static_cast<int>(threadIdx.x) % 32 / 4, args_.num_tokens - 1);
    return {ptx::shared_address(shared_ + layout_.tokens) + token * layout_.token_stride,
            reinterpret_cast<float2*>(shared_ + layout_.biases)};
  }

  // The sums of this warp's segment of a strip, in units of kInt4LowUnit and kInt4HighUnit.
  __device__ __forceinline__ void add_segment(const Int4Products<Config>& products,
                                              WeightRing<Config>& ring, float (&sums)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[j] = 0;
#pragma unroll 1
    for (int group = first_group_; group < end_group_; group += Config::kPieceGroups) {
      products.add_piece(ring.wait(), group, end_group_, sums);
      // Loads of all lanes come before the copy that takes their place: release() has the barrier of the
      // warp and the fence between the two proxies that say so. Without the fence results were wrong now
      // and then.
      ring.release();
    }
  }

  // ---- sums of a block ---------------------------------------------------------

  // [strip of the round][segment][row][token]
  __device__ float* partial(int strip, int segment) const {
    return reinterpret_cast<float*>(shared_ + layout_.partial) +
           (strip * layout::kNumKSegments + segment) * 16 * args_.num_tokens;
  }

  __device__ __forceinline__ void store_sums(int strip, const float (&sums)[4]) const {
    store_segment_sums(partial(strip, warp_), args_.num_tokens, sums);
  }

  __device__ void finish_block(int first) {
    __syncthreads();
    if constexpr (Epilogue::kFetches) ptx::wait_for_copies();
    const int tokens = args_.num_tokens;
#pragma unroll 1
    for (int i = threadIdx.x; i < num_outputs(first); i += blockDim.x) {
      const Int4Output out = output(first, i);
      const float* rows = partial(out.strip - first, 0) + out.g * tokens + out.token;
      const float lower = tree_sum<layout::kNumKSegments>(rows, 16 * tokens);
      const float upper = tree_sum<layout::kNumKSegments>(rows + 8 * tokens, 16 * tokens);
      noticed_ |=
          epilogue_.store(out, lower * (1 / layout::kInt4LowUnit),
                          upper * (1 / layout::kInt4HighUnit), row_scale(out.token), inputs(i));
    }
    // Nobody writes the next round's sums where others still read.
    if (first + args_.round_strips < end_strip_) __syncthreads();
  }

  // The pairs of outputs of the round that begins with strip `first`.
  __device__ int num_outputs(int first) const {
    return min(args_.round_strips, end_strip_ - first) * 8 * args_.num_tokens;
  }
  __device__ Int4Output output(int first, int i) const {
    return {first + i / (8 * args_.num_tokens), i % 8, i / 8 % args_.num_tokens};
  }
  __device__ float* inputs(int i) const {
    return reinterpret_cast<float*>(shared_ + layout_.inputs) + 4 * i;
  }

  // Called early, as what it loads is waited for: what fetch_inputs() needs for a thread's first output.
  __device__ int look_ahead(int first) const {
    if constexpr (Epilogue::kFetches) {
      const int i = threadIdx.x;
      return i < num_outputs(first) ? epilogue_.look_ahead(output(first, i)) : 0;
    } else {
      return 0;
    }
  }
  __device__ void fetch_inputs(int first, int ahead) const {
    if constexpr (Epilogue::kFetches) {
      for (int i = threadIdx.x; i < num_outputs(first); i += blockDim.x) {
        const Int4Output out = output(first, i);
        if (i >= static_cast<int>(blockDim.x)) ahead = epilogue_.look_ahead(out);
        epilogue_.fetch(out, ahead, ptx::shared_address(inputs(i)));
      }
    }
  }

  // 1 / rms of a token, for operands that are normalised afterwards.
  __device__ float row_scale(int token) const {
    if constexpr (Operand::kNormalised) {
      const auto* squares = reinterpret_cast<const float*>(shared_ + layout_.squares) + token;
      return inverse_rms(tree_sum<layout::kNumKSegments>(squares, kFewTokens),
                         args_.num_groups * Config::kGroup, operand_.eps);
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
  bool noticed_ = false;         // by the epilogue's store()
};

template <class Config, class Operand, class Epilogue>
__global__ void __launch_bounds__(kInt4GemmThreads, 1)
    int4_gemm_kernel(const __grid_constant__ Int4GemmArgs args,
                     const __grid_constant__ Operand operand,
                     const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(1024) std::uint8_t int4_gemm_shared[];
  Int4Gemm<Config, Operand, Epilogue>(args, operand, epilogue, int4_gemm_shared).run();
}

}  // namespace fut::cuda
