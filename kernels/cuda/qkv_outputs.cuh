// Where qkv_rope_append puts queries, keys and values, and how it turns them.
#pragma once

#include <cstdint>

#include "kernels/cuda/step_tokens.cuh"
#include "kernels/numeric/formats.h"
#include "kernels/ops.h"

namespace fut::cuda {

// Where queries, keys and values of a step go.
struct QkvOutputs {
  ActivationView q, k, v;
  KvPages kv;  // data null: to k and v
  RaggedBatch batch;
  const float* cos;
  const float* sin;
  int num_q_heads, num_kv_heads, head_dim;
  std::int64_t first_token;  // of the step, in this launch

  explicit QkvOutputs(const QkvRopeAppendArgs& a, std::int64_t first)
      : q(a.q_out),
        k(a.k_out),
        v(a.v_out),
        kv(a.kv),
        batch(a.batch),
        cos(a.rope_cos),
        sin(a.rope_sin),
        num_q_heads(a.num_q_heads),
        num_kv_heads(a.num_kv_heads),
        head_dim(a.head_dim),
        first_token(first) {}

  __device__ static void put(void* data, DType dtype, std::int64_t i, float value) {
    if (dtype == DType::F32) {
      static_cast<float*>(data)[i] = value;
    } else {
      static_cast<std::uint16_t*>(data)[i] = f32_to_bf16(value);
    }
  }

  // The first element of the slot of key head 0.
  [[nodiscard]] __device__ std::int64_t slot(std::int64_t token) const {
    const int position = batch.positions[token];
    const int sequence = sequence_of_token(batch, static_cast<int>(token));
    const std::int64_t page = page_of_position(batch, sequence, position);
    return page * kv.page.elements() + kv.page.k_offset(0, position % layout::kPageTokens);
  }
  // How far behind it that of a key or value head is.
  [[nodiscard]] __device__ std::int64_t slot_of_head(int head, bool is_value) const {
    return is_value ? kv.page.v_offset(head, 0) : kv.page.k_offset(head, 0);
  }

  // Where the dims of one head of a token of this launch go.
  struct HeadPlace {
    void* data;
    DType dtype;
    std::int64_t begin;  // of dim 0
  };
  [[nodiscard]] __device__ __forceinline__ HeadPlace place_of(int token, int head) const {
    return place_of(token, head,
                    head >= num_q_heads && kv.data != nullptr ? slot(first_token + token) : 0);
  }
  // The same where slot() of the token is known, if there is a cache.
  [[nodiscard]] __device__ __forceinline__ HeadPlace place_of(int token, int head,
                                                              std::int64_t first_slot) const {
    const std::int64_t t = first_token + token;
    HeadPlace place = {q.data, q.dtype, t * q.row_stride + head * head_dim};
    if (head >= num_q_heads) {
      const bool is_value = head >= num_q_heads + num_kv_heads;
      const int kv_head = head - num_q_heads - (is_value ? num_kv_heads : 0);
      if (kv.data != nullptr) {
        place = {kv.data, kv.dtype, first_slot + slot_of_head(kv_head, is_value)};
      } else {
        const ActivationView& view = is_value ? v : k;
        place = {view.data, view.dtype, t * view.row_stride + kv_head * head_dim};
      }
    }
    return place;
  }

  // Dims of one head, counted over query, key and value heads: values[i] to dim dims[i]. `token` in
  // this launch.
  template <int kCount>
  __device__ void store(int token, int head, const int (&dims)[kCount],
                        const float (&values)[kCount]) const {
    const HeadPlace place = place_of(token, head);
#pragma unroll
    for (int i = 0; i < kCount; ++i) put(place.data, place.dtype, place.begin + dims[i], values[i]);
  }

  [[nodiscard]] __device__ bool is_turned(int head) const {
    return head < num_q_heads + num_kv_heads;
  }

  // Turns pair i of a head: two products and one sum each, none fused.
  __device__ void turn(int token, int i, float& a, float& b) const {
    const std::int64_t angle =
        static_cast<std::int64_t>(batch.positions[first_token + token]) * (head_dim / 2) + i;
    const float c = cos[angle];
    const float s = sin[angle];
    const float turned = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
    b = __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s));
    a = turned;
  }
};

}  // namespace fut::cuda
