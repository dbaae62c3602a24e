// gate_up_swiglu on the GPU for x in BF16, that is for prompts, BF16 and E4M3 weights:
// out = silu(proj(x, Wg)) * proj(x, Wu). Contract in ops.h.
// launch  rows are normalised by a kernel of its own (prompt_prepare.cu); then the prompt product
//         (prompt_gemm.cuh), half a tile gate and half up, so that both of a channel are one thread's
//         sums. Dependent launches.
// bound   arithmetic
#include "kernels/cuda/prompt_gemm_launch.cuh"
#include "kernels/cuda/prompt_ops.h"
#include "kernels/cuda/ptx/matrix_fragments.cuh"
#include "kernels/numeric/e4m3.h"

namespace fut::cuda {
namespace {

constexpr const char* kOp = "gate_up_swiglu";

// a / b for 1 <= b <= 2^126, wrong by hardly more than half a unit in the last place.
__device__ __forceinline__ float divided(float a, float b) {
  const float r = ptx::reciprocal_fast(b);
  const float q = a * r;
  return fmaf(fmaf(-b, q, a), r, q);
}

struct PromptSwigluEpilogue {
  void* out;  // of the operands' type
  std::int64_t stride;
  float out_scale;
  std::uint64_t* num_saturated;

  template <class Format, bool kSpread, int kCount>
  __device__ __forceinline__ void finish(const float (&sums)[kCount], const PromptGemmArgs& args,
                                         const PromptPlace& place) const {
    constexpr int kPairs = kCount / 32;
    int num_clipped = 0;
#pragma unroll
    for (int b = 0; b < kPairs; ++b) {
      const PromptEight<kSpread> gates(args, 0, place.tile.row, b);
      const PromptEight<kSpread> ups(args, 1, place.tile.row, kPairs + b, kPairs);
      if (!gates.is_there()) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = place.token + 8 * half;
        if (token >= args.num_tokens) continue;
        float gate[8], up[8];
        gates.template take<Format>(gate, sums, place.scales, half);
        ups.template take<Format>(up, sums, place.scales, half);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          // Where the exponential is beyond float32, the result is 0 to every type.
          const float e = fminf(expf(-gate[i]), 0x1p125F);
          gate[i] = divided(gate[i], 1.0F + e) * up[i];
        }
        if constexpr (Format::kHasScales) num_clipped += scale(gate, gates);
        store<Format>(token * stride, gates, gate);
      }
    }
    if (num_clipped > 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(num_saturated),
                static_cast<unsigned long long>(num_clipped));
    }
  }

 private:
  // To the output's scale; how many are then too large for E4M3.
  template <bool kSpread>
  __device__ __forceinline__ int scale(float (&v)[8], const PromptEight<kSpread>& at) const {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      v[i] *= out_scale;
      largest = fmaxf(largest, fabsf(v[i]));
    }
    int count = 0;
    if (e4m3_saturates(largest)) {
#pragma unroll
      for (int i = 0; i < 8; ++i) count += e4m3_saturates(v[i]) && at.has(i) ? 1 : 0;
    }
    return count;
  }

  template <class Format, bool kSpread>
  __device__ __forceinline__ void store(std::int64_t row, const PromptEight<kSpread>& at,
                                        const float (&v)[8]) const {
    if constexpr (Format::kHasScales) {
      auto* to = static_cast<std::uint8_t*>(out) + row;
      if constexpr (kSpread) {
        const auto four = [&](int i) {
          const std::uint32_t low = ptx::e4m3x2(v[i], v[i + 1]);
          const std::uint32_t high = ptx::e4m3x2(v[i + 2], v[i + 3]);
          return low | high << 16;
        };
        *reinterpret_cast<uint2*>(to + at.row(0)) = make_uint2(four(0), four(4));
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (at.has(i)) to[at.row(i)] = ptx::saturated_e4m3(v[i]);
        }
      }
    } else {
      auto* to = static_cast<std::uint16_t*>(out) + row;
      if constexpr (kSpread) {
        *reinterpret_cast<uint4*>(to + at.row(0)) = bf16x8(v);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (at.has(i)) to[at.row(i)] = f32_to_bf16(v[i]);
        }
      }
    }
  }
};

PromptProduct product_of(const GateUpSwigluArgs& a) {
  PromptProduct product;
  if (const auto* apart = std::get_if<GateUpMatrices>(&a.weights)) {
    product = prompt_product(kOp, {apart->gate_proj, apart->up_proj});
  } else {
    product = prompt_product(kOp, std::get<Weights>(a.weights));
    split_product(product, static_cast<int>(a.out.cols));
  }
  product.paired = true;
  return product;
}

}  // namespace

void prompt_gate_up_swiglu(const GateUpSwigluArgs& a, LaunchContext& context) {
  PromptProduct product = product_of(a);
  set_normed_rows(kOp, a.x, a.eps, a.operand_scale, product, context);
  const bool in_eights = reinterpret_cast<std::uintptr_t>(a.out.data) % 16 == 0 &&
                         a.out.row_stride * dtype_bytes(a.out.dtype) % 16 == 0;
  const PromptSwigluEpilogue epilogue{a.out.data, a.out.row_stride, a.out_scale,
                                      context.saturations() + 2};
  launch_prompt_gemm(kOp, product, 1.0F / a.operand_scale, in_eights, epilogue, context);
}

}  // namespace fut::cuda
