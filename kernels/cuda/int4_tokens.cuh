// Up to eight tokens of an INT4 projection in shared memory: F16, in the order of operand B of mma: for 64
// columns lane t has the 16 halves that it needs of a token side by side. An operand (int4_normed_operand.cuh)
// says where numbers come from.
#pragma once

#include <cstdint>

#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/cuda/rms.cuh"

namespace fut::cuda {

// Where 4 columns of a token go in shared memory, in halves from the token's begin: columns k, k + 1,
// and 16 halves on k + 2, k + 3. k is a multiple of 4.
__device__ __forceinline__ int operand_offset(int k) {
  const int column = k % 16;
  return k / 64 * 64 + column % 8 / 2 * 16 + k % 64 / 16 * 4 + column / 8 * 2;
}

class Int4Tokens {
 public:
  // rows: of column 0, `stride` bytes apart; squares: [segment][kFewTokens].
  __device__ Int4Tokens(std::uint8_t* rows, int stride, int num_tokens, float* squares)
      : rows_(rows), stride_(stride), num_tokens_(num_tokens), squares_(squares) {}

  // Brings columns begin .. end - 1 of the tokens from first_token on into shared memory, and for a norm the
  // sum of their squares: this warp's segment of K. kTokens tokens and kLoads times 128 columns of each are
  // under way together. Squares are added column by column of a lane, whatever these are.
  template <int kTokens, int kLoads, class Operand>
  __device__ __forceinline__ void stage(const Operand& operand, int segment, int begin, int end,
                                        int first_token = 0) const {
    for (int first = first_token; first < num_tokens_; first += kTokens) {
      float squares[kTokens] = {};
#pragma unroll 1
      for (int k = begin; k < end; k += 128 * kLoads) {
        stage_columns<kTokens, kLoads>(operand, first, k + threadIdx.x % 32 * 4, end, squares);
      }
      if constexpr (Operand::kNormalised) {
        for (int j = 0; j < kTokens; ++j) publish_squares(segment, first + j, squares[j]);
      }
    }
  }

 private:
  template <int kTokens, int kLoads, class Operand>
  __device__ __forceinline__ void stage_columns(const Operand& operand, int first_token, int k,
                                                int end, float (&squares)[kTokens]) const {
    uint2 halves[kTokens][kLoads];
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
#pragma unroll
      for (int h = 0; h < kLoads; ++h) {
        const int token = first_token + j;
        const int column = k + 128 * h;
        halves[j][h] = make_uint2(0, 0);
        if (token < num_tokens_ && column < end) {
          halves[j][h] = operand.load(token, column, squares[j]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
#pragma unroll
      for (int h = 0; h < kLoads; ++h) {
        const int token = first_token + j;
        const int column = k + 128 * h;
        if (token >= num_tokens_ || column >= end) continue;
        put_columns(token, column, halves[j][h]);
      }
    }
  }

  __device__ __forceinline__ void put_columns(int token, int column, uint2 halves) const {
    auto* row = reinterpret_cast<std::uint32_t*>(rows_ + token * stride_);
    const int word = operand_offset(column) / 2;
    row[word] = halves.x;
    row[word + 8] = halves.y;
  }

  __device__ void publish_squares(int segment, int token, float squares) const {
    squares = sum_of_lanes(squares);
    if (token < num_tokens_ && threadIdx.x % 32 == 0)
      squares_[segment * kFewTokens + token] = squares;
  }

  std::uint8_t* rows_;
  int stride_, num_tokens_;
  float* squares_;
};

}  // namespace fut::cuda
