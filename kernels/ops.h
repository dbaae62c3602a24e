// THE contract of every op: one argument struct and one comment block each; check() enforces it and
// both backends call it first. Y[M,N] = X[M,K] . W[N,K]^T always: M tokens, N outputs, K inputs.
//
// Shared rules. Views are row-major with row_stride >= cols. Pointers are backend memory. Nothing
// may overlap unless `aliasing` says so; check() holds the large outputs against the large inputs,
// for the small arrays (batch, rows, ids, parameters) the caller promises it. Everything is float32
// unless a line says otherwise.
//
// Dot products of the CPU backend run over 16 fixed partial sums: lane l adds the products of
// columns l, l+16, l+32, ... in ascending order (columns past the last multiple of 16 go to lanes
// 0, 1, ...), then lanes are added pairwise: l and l+8, l and l+4, l and l+2, l and l+1. So a
// result depends neither on the number of threads nor on the rows beside it.
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace fut {

// embed: X[m] = float(W[token_ids[m]])
// shapes    token_ids [M], weight [V, H] (rows contiguous), out [M, H]
// limits    M >= 1; 0 <= token_ids[m] < V (caller promises)
// rounding  none: BF16 and F16 are exact in float32
// bound     bytes: M * H * (dtype + 4)
struct EmbedArgs {
  const std::int32_t* token_ids = nullptr;
  std::int64_t num_tokens = 0;
  WeightMatrix weight;
  MatrixView<float> out;
};
void check(const EmbedArgs& a);

// qkv_rope_append: h = rms_norm(x) * gain; q = rope(h Wq^T) to q_out; rope(h Wk^T) and h Wv^T into
// the cache, at each token's own position
// shapes    x [M, H], gain [H], q_proj [Nq*D, H], k_proj and v_proj [Nkv*D, H], q_out [M, Nq*D]
// limits    D even; Nq a multiple of Nkv; positions < rope_positions; pages cover every position
// layout    pages as layout::KvPageF32, kPageTokens tokens each
// rope      pair i of a head is (v[i], v[i + D/2]); rotated by cos/sin row `position` of the table
// rounding  rms_norm: mean of squares as a dot product of x with itself, 1/sqrt(mean + eps), then
//           (x * that) * gain
struct QkvRopeAppendArgs {
  MatrixView<const float> x;
  const float* gain = nullptr;
  float eps = 0;
  WeightMatrix q_proj, k_proj, v_proj;
  int num_q_heads = 0, num_kv_heads = 0, head_dim = 0;
  const float* rope_cos = nullptr;  // [rope_positions, D/2]
  const float* rope_sin = nullptr;
  int rope_positions = 0;
  RaggedBatch batch;
  KvPages kv;
  MatrixView<float> q_out;
};
void check(const QkvRopeAppendArgs& a);

// attention: causal attention of every token of the step over its own sequence's cache, its own
//            key included (the cache was appended before). One op for prefill and decode.
// shapes    q [M, Nq*D], out [M, Nq*D]; query head h reads KV head h / (Nq/Nkv)
// rounding  scores = dot(q, k) * 1/sqrt(D); maximum, exp and their sum in float32, keys ascending;
//           out = (sum_i p_i v_i) / sum_i p_i, keys ascending
// aliasing  out may not be q
struct AttentionArgs {
  MatrixView<const float> q;
  int num_q_heads = 0, num_kv_heads = 0, head_dim = 0;
  RaggedBatch batch;
  KvPages kv;
  MatrixView<float> out;
};
void check(const AttentionArgs& a);

// linear_residual: R += X W^T (o_proj and down_proj)
// shapes    x [M, K], weight [N, K], residual [M, N] read and written
// rounding  the dot product, then one addition
struct LinearResidualArgs {
  MatrixView<const float> x;
  WeightMatrix weight;
  MatrixView<float> residual;
};
void check(const LinearResidualArgs& a);

// gate_up_swiglu: h = rms_norm(x) * gain; out = silu(h Wg^T) * (h Wu^T)
// shapes    x [M, H], gain [H], gate_proj and up_proj [F, H], out [M, F]
// rounding  rms_norm as in qkv_rope_append; silu(v) = v / (1 + exp(-v)) step by step in float32
struct GateUpSwigluArgs {
  MatrixView<const float> x;
  const float* gain = nullptr;
  float eps = 0;
  WeightMatrix gate_proj, up_proj;
  MatrixView<float> out;
};
void check(const GateUpSwigluArgs& a);

// lm_head: logits of chosen rows: out[i] = (rms_norm(x[rows[i]]) * gain) W^T
// shapes    x [M, H], rows [R] (ascending: caller promises), gain [H], weight [V, H], out [R, V]
// limits    R >= 1; 0 <= rows[i] < M (caller promises)
// rounding  rms_norm as in qkv_rope_append
struct LmHeadArgs {
  MatrixView<const float> x;
  const std::int32_t* rows = nullptr;
  std::int64_t num_rows = 0;
  const float* gain = nullptr;
  float eps = 0;
  WeightMatrix weight;
  MatrixView<float> out;
};
void check(const LmHeadArgs& a);

// How one sequence's next token is chosen. Neutral values switch a stage off.
// Order: repetition, presence and frequency penalties; top-k; top-p; min-p; temperature; draw.
// With temperature_first (the order of transformers and vLLM) temperature comes before top-k.
struct SampleParams {
  float temperature = 1.0F;  // <= kGreedyTemperature: the largest logit, ties to the lower id
  int top_k = 0;             // 0: off
  float top_p = 1.0F;        // in (0, 1]
  float min_p = 0.0F;        // in [0, 1], of the largest probability
  float repetition_penalty = 1.0F;  // > 0: positive logits divided, negative multiplied
  float presence_penalty = 0.0F;    // subtracted once from every id seen
  float frequency_penalty = 0.0F;   // subtracted for each time it was seen
  bool temperature_first = false;
  std::uint64_t seed = 0;
};
inline constexpr float kGreedyTemperature = 1e-5F;

// sample: next_ids[i] = the token drawn from logits[i]
// shapes    logits [R, V]; params [R]; draw_index [R]; history [history_indptr[R]]; next_ids [R]
// limits    params in the ranges above; history ids in [0, V)
// penalties over the ids history[history_indptr[i] .. history_indptr[i+1]] (the window that counts)
// top-k     off from V on; ties at its edge go to the lower ids
// top-p     the shortest run of candidates, best first, that holds top_p of what top-k left over
// min-p     min_p = 1 keeps the best candidate alone
// draw      u = philox_uniform(seed, draw_index): the same number on every backend; candidates in
//           order of falling logit, ties by rising id; the first whose running probability sum
//           exceeds u times the total. At least one candidate survives every stage.
// rounding  float64 from the penalties on; penalised logits back to float32 and into its finite
//           range
// faults    a row with a NaN or an infinite maximum gives -1 (kNoToken), never a token
struct SampleArgs {
  MatrixView<const float> logits;
  const SampleParams* params = nullptr;
  const std::uint64_t* draw_index = nullptr;
  const std::int32_t* history = nullptr;
  const std::int32_t* history_indptr = nullptr;
  std::int32_t* next_ids = nullptr;
};
inline constexpr std::int32_t kNoToken = -1;
void check(const SampleArgs& a);

}  // namespace fut
