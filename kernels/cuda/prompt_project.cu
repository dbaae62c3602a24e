// Plain products of a prompt's tokens. See prompt_ops.h.
// launch  the prompt product (prompt_gemm.cuh), dependent launch
// bound   arithmetic
#include "kernels/cuda/prompt_gemm_launch.cuh"
#include "kernels/cuda/prompt_ops.h"

namespace fut::cuda {
namespace {

constexpr const char* kOp = "prompt_project";

template <class T>
struct PromptStoreEpilogue {
  T* out;
  std::int64_t stride;

  template <class Format, bool kSpread, int kCount>
  __device__ __forceinline__ void finish(const float (&sums)[kCount], const PromptGemmArgs& args,
                                         const PromptPlace& place) const {
#pragma unroll
    for (int block = 0; block < kCount / 16; ++block) {
      const PromptEight<kSpread> eight(args, place.tile.part, place.tile.row, block);
      if (!eight.is_there()) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = place.token + 8 * half;
        if (token >= args.num_tokens) continue;
        float v[8];
        eight.template take<Format>(v, sums, place.scales, half);
        store(out + token * stride + eight.part_begin, eight, v);
      }
    }
  }

 private:
  template <bool kSpread>
  __device__ __forceinline__ static void store(T* row, const PromptEight<kSpread>& eight,
                                               const float (&v)[8]) {
    if constexpr (kSpread && sizeof(T) == 4) {
      auto* fours = reinterpret_cast<float4*>(row + eight.row(0));
      fours[0] = make_float4(v[0], v[1], v[2], v[3]);
      fours[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else if constexpr (kSpread) {
      *reinterpret_cast<uint4*>(row + eight.row(0)) = bf16x8(v);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (!eight.has(i)) continue;
        if constexpr (sizeof(T) == 4) {
          row[eight.row(i)] = v[i];
        } else {
          row[eight.row(i)] = f32_to_bf16(v[i]);
        }
      }
    }
  }
};

template <class T>
void project(const PromptProduct& product, const PromptGemmPlan& plan, MatrixView<T> out,
             LaunchContext& context) {
  launch_prompt_plan(kOp, product, plan, PromptStoreEpilogue<T>{out.data, out.row_stride},
                     context.handle());
}

}  // namespace

void prompt_project(const PromptProduct& product, const PromptGemmPlan& plan, MatrixView<float> out,
                    LaunchContext& context) {
  project(product, plan, out, context);
}

void prompt_project_bf16(const PromptProduct& product, const PromptGemmPlan& plan,
                         MatrixView<std::uint16_t> out, LaunchContext& context) {
  project(product, plan, out, context);
}

}  // namespace fut::cuda
