// qkv_rope_append on the GPU for x in BF16, that is for prompts, BF16 and E4M3 weights. Contract in
// ops.h.
// launch  rows are normalised by a kernel of its own (prompt_prepare.cu). Heads of 64 or 128 dims that no
//         Hadamard matrix rotates: the prompt product (prompt_gemm.cuh), both dims of a RoPE pair one
//         thread's sums, keys and values straight into their places. Else float32 results of slices of
//         tokens go through memory and a block for each head and token finishes them. Dependent launches.
// bound   arithmetic
#include <algorithm>

#include "kernels/cuda/prompt_gemm_launch.cuh"
#include "kernels/cuda/prompt_ops.h"
#include "kernels/cuda/qkv_outputs.cuh"
#include "kernels/cuda/row_ops.h"

namespace fut::cuda {
namespace {

constexpr const char* kOp = "qkv_rope_append";
constexpr std::int64_t kSliceTokens = 512;  // whose float32 results lie in memory at a time

// Eight neighbouring dims of a head, and their partners half a head on.
struct DimPairs {
  float lower[8], upper[8];
};

struct PromptRopeEpilogue {
  QkvOutputs outputs;
  bool in_eights;  // BF16 everywhere, eight numbers of a row may be written at once

  template <class Format, int kCount>
  __device__ __forceinline__ void finish(const float (&sums)[kCount], const PromptGemmArgs& args,
                                         const PromptPlace& place) const {
    if (outputs.head_dim == 128) {
      finish_heads<Format, 2>(sums, args, place);
    } else {
      finish_heads<Format, 1>(sums, args, place);
    }
  }

 private:
  // kHalf: blocks of 32 rows in half a head.
  template <class Format, int kHalf, int kCount>
  __device__ __forceinline__ void finish_heads(const float (&sums)[kCount],
                                               const PromptGemmArgs& args,
                                               const PromptPlace& place) const {
    constexpr int kHeadDim = 2 * kHalf * layout::kSpreadRows;
#pragma unroll
    for (int b = 0; b < kCount / 32; ++b) {
      const int lower_block = b / kHalf * 2 * kHalf + b % kHalf;
      const int first = place.tile.row + layout::kSpreadRows * lower_block;
      const PromptEight lower(args, place.tile.part, first);
      if (!lower.is_there()) continue;
      const PromptScales<Format> lower_scales(args, lower);
      const PromptScales<Format> upper_scales(
          args, PromptEight(args, place.tile.part, first + kHeadDim / 2));
      const int head = (lower.part_begin + first) / kHeadDim;
      const int dim = first % kHeadDim + layout::prompt_output(true, threadIdx.x % 32, 0);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = place.token + 8 * half;
        if (token >= args.num_tokens) continue;
        DimPairs v;
        lower_scales.take(v.lower, sums, lower_block, half);
        upper_scales.take(v.upper, sums, lower_block + kHalf, half);
        if (outputs.is_turned(head)) turn(v, token, dim);
        store(v, token, head, dim);
      }
    }
  }

  // As QkvOutputs::turn.
  __device__ __forceinline__ void turn(DimPairs& v, int token, int dim) const {
    const std::int64_t angle =
        static_cast<std::int64_t>(__ldg(outputs.batch.positions + token)) *
            (outputs.head_dim / 2) +
        dim;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const float4 cos = load_four(outputs.cos + angle + i);
      const float4 sin = load_four(outputs.sin + angle + i);
      const float c[4] = {cos.x, cos.y, cos.z, cos.w};
      const float s[4] = {sin.x, sin.y, sin.z, sin.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float a = v.lower[i + j];
        const float b = v.upper[i + j];
        v.lower[i + j] = __fsub_rn(__fmul_rn(a, c[j]), __fmul_rn(b, s[j]));
        v.upper[i + j] = __fadd_rn(__fmul_rn(b, c[j]), __fmul_rn(a, s[j]));
      }
    }
  }
  __device__ __forceinline__ float4 load_four(const float* from) const {
    if (in_eights) return __ldg(reinterpret_cast<const float4*>(from));
    return make_float4(__ldg(from), __ldg(from + 1), __ldg(from + 2), __ldg(from + 3));
  }

  __device__ __forceinline__ void store(const DimPairs& v, int token, int head, int dim) const {
    const QkvOutputs::HeadPlace place = outputs.place_of(token, head);
    if (in_eights) {
      auto* row = static_cast<std::uint16_t*>(place.data) + place.begin + dim;
      *reinterpret_cast<uint4*>(row) = bf16x8(v.lower);
      *reinterpret_cast<uint4*>(row + outputs.head_dim / 2) = bf16x8(v.upper);
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      QkvOutputs::put(place.data, place.dtype, place.begin + dim + i, v.lower[i]);
      QkvOutputs::put(place.data, place.dtype, place.begin + dim + outputs.head_dim / 2 + i,
                      v.upper[i]);
    }
  }
};

PromptProduct product_of(const QkvWeights& weights) {
  if (const auto* apart = std::get_if<QkvMatrices>(&weights)) {
    return prompt_product(kOp, {apart->q_proj, apart->k_proj, apart->v_proj});
  }
  return prompt_product(kOp, std::get<Weights>(weights));
}

bool in_sixteens(const ActivationView& view) {
  return view.data == nullptr ||
         (view.dtype == DType::BF16 && reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 &&
          view.row_stride % 8 == 0);
}

bool all_in_eights(const QkvRopeAppendArgs& a) {
  const auto is_aligned = [](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  };
  return in_sixteens(a.q_out) && in_sixteens(a.k_out) && in_sixteens(a.v_out) &&
         (a.kv.data == nullptr || (a.kv.dtype == DType::BF16 && is_aligned(a.kv.data))) &&
         is_aligned(a.rope_cos) && is_aligned(a.rope_sin);
}

void launch_in_slices(const QkvRopeAppendArgs& a, PromptProduct product, LaunchContext& context) {
  const std::int64_t rows = product.rows();
  const std::int64_t most = std::min(kSliceTokens, a.x.rows);
  auto* sums = static_cast<float*>(
      context.scratch(ScratchUse::PromptSums, static_cast<std::size_t>(most * rows) * 4));
  const auto* operands = static_cast<const std::uint8_t*>(product.x);
  for (std::int64_t first = 0; first < a.x.rows; first += most) {
    product.tokens = std::min(most, a.x.rows - first);
    product.x = operands + first * product.x_stride * product.code_bytes;
    PromptGemmPlan plan = plan_prompt_gemm(product, context.machine());
    plan.args.scale_factor = 1.0F / a.operand_scale;
    prompt_project(product, plan, {sums, product.tokens, rows, rows}, context);
    finish_heads(a, sums, first, product.tokens, context);
  }
}

}  // namespace

void prompt_qkv_rope_append(const QkvRopeAppendArgs& a, LaunchContext& context) {
  PromptProduct product = product_of(a.weights);
  set_normed_rows(kOp, a.x, a.eps, a.operand_scale, product, context);
  if (a.rotation_block > 0 || (a.head_dim != 64 && a.head_dim != 128)) {
    launch_in_slices(a, product, context);
    return;
  }
  launch_prompt_gemm(kOp, product, 1.0F / a.operand_scale,
                     PromptRopeEpilogue{QkvOutputs(a, 0), all_in_eights(a)}, context);
}

}  // namespace fut::cuda
