// qkv_rope_append on the GPU for x in BF16, that is for prompts, BF16 and E4M3 weights. Contract in
// ops.h.
// launch  rows are normalised by a kernel of its own (prompt_prepare.cu). Heads of 64 or 128 dims: the
//         prompt product (prompt_gemm.cuh), both dims of a RoPE pair one thread's sums, those of a
//         rotated head a quad's; keys and values straight into their places. Else float32 results of
//         slices of tokens go through memory and a block for each head and token finishes them.
//         Dependent launches.
// bound   arithmetic
#include <algorithm>
#include <cmath>

#include "kernels/cuda/prompt_gemm_launch.cuh"
#include "kernels/cuda/prompt_ops.h"
#include "kernels/cuda/qkv_outputs.cuh"
#include "kernels/cuda/row_ops.h"

namespace fut::cuda {
namespace {

constexpr const char* kOp = "qkv_rope_append";
constexpr std::int64_t kSliceTokens = 512;  // whose float32 results lie in memory at a time

// Blocks of 32 dims of one head of one token: of each eight numbers in a thread.
template <int kBlocks>
struct PromptHead {
  float v[kBlocks][8];

  // As QkvOutputs::turn; dim 0's angle at `angle`.
  template <bool kSpread>
  __device__ __forceinline__ void turn(const float* cos, const float* sin, std::int64_t angle) {
#pragma unroll
    for (int b = 0; b < kBlocks / 2; ++b) {
      float c[8], s[8];
      load<kSpread>(c, cos + angle + layout::kSpreadRows * b);
      load<kSpread>(s, sin + angle + layout::kSpreadRows * b);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float lower = v[b][i];
        const float upper = v[b + kBlocks / 2][i];
        v[b][i] = __fsub_rn(__fmul_rn(lower, c[i]), __fmul_rn(upper, s[i]));
        v[b + kBlocks / 2][i] = __fadd_rn(__fmul_rn(upper, c[i]), __fmul_rn(lower, s[i]));
      }
    }
  }

  // numeric/hadamard.h, dims in spread order: distances 1, 2 and 4 lie in a thread's eight, 8 and 16
  // between lanes of a quad, 32 and 64 between blocks. Whole warps.
  __device__ __forceinline__ void rotate(int rotation_block, float norm) {
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) {
      if (distance >= rotation_block) break;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if ((i & distance) == 0) butterfly(v[b][i], v[b][i + distance]);
        }
      }
    }
#pragma unroll
    for (int distance = 8; distance < 32; distance *= 2) {
      if (distance >= rotation_block) break;
      const bool is_second = (threadIdx.x * 8 & static_cast<unsigned>(distance)) != 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float other = __shfl_xor_sync(0xFFFFFFFFU, v[b][i], distance / 8);
          v[b][i] = other + (is_second ? -v[b][i] : v[b][i]);
        }
      }
    }
#pragma unroll
    for (int distance = 32; distance < 32 * kBlocks; distance *= 2) {
      if (distance >= rotation_block) break;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        if ((b & distance / 32) != 0) continue;
#pragma unroll
        for (int i = 0; i < 8; ++i) butterfly(v[b][i], v[b + distance / 32][i]);
      }
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[b][i] *= norm;
    }
  }

  template <bool kSpread>
  __device__ __forceinline__ void store(const QkvOutputs::HeadPlace& to) const {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const std::int64_t begin = to.begin + layout::kSpreadRows * b;
      if constexpr (kSpread) {
        auto* row = static_cast<std::uint16_t*>(to.data) + begin + dim<true>(0);
        *reinterpret_cast<uint4*>(row) = bf16x8(v[b]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          QkvOutputs::put(to.data, to.dtype, begin + dim<false>(i), v[b][i]);
      }
    }
  }

 private:
  template <bool kSpread>
  [[nodiscard]] __device__ __forceinline__ static int dim(int i) {
    return layout::prompt_output(kSpread, static_cast<int>(threadIdx.x) % 32, i);
  }
  __device__ __forceinline__ static void butterfly(float& a, float& b) {
    const float sum = a + b;
    b = a - b;
    a = sum;
  }
  template <bool kSpread>
  __device__ __forceinline__ static void load(float (&values)[8], const float* from) {
    if constexpr (kSpread) {
      const auto* fours = reinterpret_cast<const float4*>(from + dim<true>(0));
      const float4 a = __ldg(fours);
      const float4 b = __ldg(fours + 1);
      values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
      values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = __ldg(from + dim<false>(i));
    }
  }
};

struct PromptRopeEpilogue {
  QkvOutputs outputs;
  int rotation_block;  // 0, or rows are in spread order
  float rotation_norm;

  template <class Format, bool kSpread, int kCount>
  __device__ __forceinline__ void finish(const float (&sums)[kCount], const PromptGemmArgs& args,
                                         const PromptPlace& place) const {
    if (outputs.head_dim == 128) {
      finish_heads<Format, kSpread, 4>(sums, args, place);
    } else {
      finish_heads<Format, kSpread, 2>(sums, args, place);
    }
  }

 private:
  template <class Format, bool kSpread, int kHeadBlocks, int kCount>
  __device__ __forceinline__ void finish_heads(const float (&sums)[kCount],
                                               const PromptGemmArgs& args,
                                               const PromptPlace& place) const {
    constexpr int kHeadDim = kHeadBlocks * layout::kSpreadRows;
    constexpr int kHeads = kCount / 16 / kHeadBlocks;
    const int first_head = (args.part_begin[place.tile.part] + place.tile.row) / kHeadDim;
    const bool cached = outputs.kv.data != nullptr && first_head + kHeads > outputs.num_q_heads;
    // Lanes of tokens that are not there do as the last one does, and store nothing.
    std::int64_t angles[2];
    std::int64_t slots[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = min(place.token + 8 * half, args.num_tokens - 1);
      angles[half] =
          static_cast<std::int64_t>(__ldg(outputs.batch.positions + token)) * (kHeadDim / 2);
      if (cached) slots[half] = outputs.slot(token);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (place.tile.row + h * kHeadDim >= args.part_rows[place.tile.part]) break;
      const int head = first_head + h;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        PromptHead<kHeadBlocks> values;
#pragma unroll
        for (int b = 0; b < kHeadBlocks; ++b) {
          const PromptEight<kSpread> eight(args, place.tile.part, place.tile.row,
                                           kHeadBlocks * h + b);
          eight.template take<Format>(values.v[b], sums, place.scales, half);
        }
        if (outputs.is_turned(head)) {
          values.template turn<kSpread>(outputs.cos, outputs.sin, angles[half]);
          if (kSpread && rotation_block > 0) values.rotate(rotation_block, rotation_norm);
        }
        const int token = place.token + 8 * half;
        if (token < args.num_tokens) {
          values.template store<kSpread>(outputs.place_of(token, head, slots[half]));
        }
        __syncwarp();
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
  const bool in_eights = all_in_eights(a);
  if ((a.head_dim != 64 && a.head_dim != 128) || (a.rotation_block > 0 && !in_eights)) {
    launch_in_slices(a, product, context);
    return;
  }
  const float norm =
      a.rotation_block > 0
          ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.rotation_block)))
          : 1.0F;
  launch_prompt_gemm(kOp, product, 1.0F / a.operand_scale, in_eights,
                     PromptRopeEpilogue{QkvOutputs(a, 0), a.rotation_block, norm}, context);
}

}  // namespace fut::cuda
