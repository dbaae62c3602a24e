// linear_residual on the GPU for a BF16 residual, that is for prompts: R = BF16(R + x W^T), BF16 and E4M3
// weights. Contract in ops.h.
// launch  the prompt product (prompt_gemm.cuh), dependent launch
// bound   arithmetic
#include "kernels/cuda/prompt_gemm_launch.cuh"
#include "kernels/cuda/prompt_ops.h"

namespace fut::cuda {
namespace {

constexpr const char* kOp = "linear_residual";

struct PromptResidualEpilogue {
  std::uint16_t* residual;
  std::int64_t stride;

  template <class Format, bool kSpread, int kCount>
  __device__ __forceinline__ void finish(const float (&sums)[kCount], const PromptGemmArgs& args,
                                         const PromptPlace& place) const {
    constexpr int kAtOnce = 4;  // blocks whose loads are under way together
#pragma unroll
    for (int first = 0; first < kCount / 16; first += kAtOnce) {
      uint4 old[kAtOnce][2];
      if constexpr (kSpread) {
#pragma unroll
        for (int b = 0; b < kAtOnce; ++b) {
          const PromptEight<kSpread> eight(args, place.tile.part, place.tile.row, first + b);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int token = place.token + 8 * half;
            if (token < args.num_tokens && eight.is_there()) {
              old[b][half] = *reinterpret_cast<const uint4*>(row(token) + eight.row(0));
            }
          }
        }
      }
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b) {
        const PromptEight<kSpread> eight(args, place.tile.part, place.tile.row, first + b);
        if (!eight.is_there()) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int token = place.token + 8 * half;
          if (token >= args.num_tokens) continue;
          float v[8];
          eight.template take<Format>(v, sums, place.scales, half);
          if constexpr (kSpread) {
            *reinterpret_cast<uint4*>(row(token) + eight.row(0)) = added(old[b][half], v);
          } else {
            add_apart(row(token), eight, v);
          }
        }
      }
    }
  }

 private:
  __device__ std::uint16_t* row(int token) const {
    return residual + token * stride;
  }

  __device__ static uint4 added(const uint4& old, const float (&v)[8]) {
    const std::uint32_t pairs[4] = {old.x, old.y, old.z, old.w};
    float sum[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[2 * i] = __fadd_rn(__uint_as_float(pairs[i] << 16), v[2 * i]);
      sum[2 * i + 1] = __fadd_rn(__uint_as_float(pairs[i] & 0xFFFF0000U), v[2 * i + 1]);
    }
    return bf16x8(sum);
  }
  __device__ static void add_apart(std::uint16_t* to, const PromptEight<false>& eight,
                                   const float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (!eight.has(i)) continue;
      std::uint16_t* place = to + eight.row(i);
      *place = f32_to_bf16(__fadd_rn(bf16_to_f32(*place), v[i]));
    }
  }
};

}  // namespace

void prompt_linear_residual(const LinearResidualArgs& a, LaunchContext& context) {
  PromptProduct product = prompt_product(kOp, a.weight);
  set_readable_rows(kOp, a.x, product, context);
  const bool in_eights =
      reinterpret_cast<std::uintptr_t>(a.residual.data) % 16 == 0 && a.residual.row_stride % 8 == 0;
  const PromptResidualEpilogue epilogue{static_cast<std::uint16_t*>(a.residual.data),
                                        a.residual.row_stride};
  launch_prompt_gemm(kOp, product, 1.0F / a.x_scale, in_eights, epilogue, context);
}

}  // namespace fut::cuda
