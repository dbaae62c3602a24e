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

  template <class Format, bool kSpread, int kCount>
  __device__ __forceinline__ void finish(const float (&sums)[kCount], const PromptGemmArgs& args,
                                         const PromptPlace& place) const {
    if (outputs.head_dim == 128) {
      finish_heads<Format, kSpread, 2>(sums, args, place);
    } else {
      finish_heads<Format, kSpread, 1>(sums, args, place);
    }
  }

 private:
  // kHalf: blocks of 32 rows in half a head.
  template <class Format, bool kSpread, int kHalf, int kCount>
  __device__ __forceinline__ void finish_heads(const float (&sums)[kCount],
                                               const PromptGemmArgs& args,
                                               const PromptPlace& place) const {
    constexpr int kHeadDim = 2 * kHalf * layout::kSpreadRows;
    constexpr int kBlocks = kCount / 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = place.token + 8 * half;
      if (token >= args.num_tokens) continue;
      const std::int64_t angle =
          static_cast<std::int64_t>(__ldg(outputs.batch.positions + token)) * (kHeadDim / 2);
#pragma unroll
      for (int first_block = 0; first_block < kBlocks; first_block += 2 * kHalf) {
        const PromptEight<kSpread> first(args, place.tile.part, place.tile.row, first_block);
        if (!first.is_there()) continue;
        const int head = (first.part_begin + first.first) / kHeadDim;
        const QkvOutputs::HeadPlace to = outputs.place_of(token, head);
#pragma unroll
        for (int b = first_block; b < first_block + kHalf; ++b) {
          const PromptEight<kSpread> lower(args, place.tile.part, place.tile.row, b);
          const PromptEight<kSpread> upper(args, place.tile.part, place.tile.row, b + kHalf);
          DimPairs v;
          lower.template take<Format>(v.lower, sums, place.scales, half);
          upper.template take<Format>(v.upper, sums, place.scales, half);
          if (outputs.is_turned(head)) turn(v, lower, angle - first.first);
          store(v, lower, to, first.first, kHeadDim / 2);
        }
      }
    }
  }

  // As QkvOutputs::turn; `angles`: where those of row 0 of the part would be.
  template <bool kSpread>
  __device__ __forceinline__ void turn(DimPairs& v, const PromptEight<kSpread>& at,
                                       std::int64_t angles) const {
    float c[8], s[8];
    load(c, outputs.cos + angles, at);
    load(s, outputs.sin + angles, at);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float a = v.lower[i];
      const float b = v.upper[i];
      v.lower[i] = __fsub_rn(__fmul_rn(a, c[i]), __fmul_rn(b, s[i]));
      v.upper[i] = __fadd_rn(__fmul_rn(b, c[i]), __fmul_rn(a, s[i]));
    }
  }
  template <bool kSpread>
  __device__ __forceinline__ static void load(float (&v)[8], const float* from,
                                              const PromptEight<kSpread>& at) {
    if constexpr (kSpread) {
      const float4 a = __ldg(reinterpret_cast<const float4*>(from + at.row(0)));
      const float4 b = __ldg(reinterpret_cast<const float4*>(from + at.row(0)) + 1);
      v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
      v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = __ldg(from + at.row(i));
    }
  }

  // The head's dim 0 is row `begin` of the part.
  template <bool kSpread>
  __device__ __forceinline__ static void store(const DimPairs& v, const PromptEight<kSpread>& at,
                                               const QkvOutputs::HeadPlace& to, int begin,
                                               int half_head) {
    if constexpr (kSpread) {
      auto* row = static_cast<std::uint16_t*>(to.data) + to.begin + (at.row(0) - begin);
      *reinterpret_cast<uint4*>(row) = bf16x8(v.lower);
      *reinterpret_cast<uint4*>(row + half_head) = bf16x8(v.upper);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const std::int64_t place = to.begin + (at.row(i) - begin);
        QkvOutputs::put(to.data, to.dtype, place, v.lower[i]);
        QkvOutputs::put(to.data, to.dtype, place + half_head, v.upper[i]);
      }
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
    PromptGemmPlan plan = plan_prompt_gemm(product, rows % 8 == 0, context.machine());
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
  launch_prompt_gemm(kOp, product, 1.0F / a.operand_scale, all_in_eights(a),
                     PromptRopeEpilogue{QkvOutputs(a, 0)}, context);
}

}  // namespace fut::cuda
