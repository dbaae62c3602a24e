// THE contract of every op: one argument struct and one comment block each; check() enforces it and
// both backends call it first. Y[M,N] = X[M,K] . W[N,K]^T always: M tokens, N outputs, K inputs.
//
// Shared rules. Views are row-major with row_stride >= cols. Pointers are backend memory. Nothing
// may overlap unless `aliasing` says so; check() holds the large outputs against the large inputs,
// for the small arrays (batch, rows, ids, parameters) the caller promises it.
//
// Numbers. What an op computes with is decided by the types of its weights and views, and is written
// down once, in the table "Who rounds what" of kernels/README.md, whose columns are called here
//   plain   DenseMatrix with a gain: float32 throughout
//   bf16    DenseMatrix of BF16 without a gain (it is folded into the weights)
//   fp8     E4m3Matrix, no gain (folded in)
//   int4    Int4Matrix, no gain (folded in)
// T(v) is v rounded to type T, to the nearest, ties to even, E4M3 and F16 saturating at their
// largest number. Sums are float32 whatever the types.
//
// Sums of products of the CPU backend run over 16 fixed partial sums: lane l adds the products of
// columns l, l+16, l+32, ... in ascending order (columns past the last multiple of 16 go to lanes
// 0, 1, ...), then lanes are added pairwise: l and l+8, l and l+4, l and l+2, l and l+1. So a
// result depends neither on the number of threads nor on the rows beside it. dot(a, b) is that;
// another backend may add in another order, and fuse a product with the addition that follows it,
// where no line says otherwise. The GPU adds products of BF16 and E4M3 operands of a prompt (x or
// residual in BF16) in one chain over K, ascending in steps of 32 bytes of a row, as its tensor cores
// do; of E4M3 integers sums below 2^13 are exact.
//
// proj(x, W), the product with normalised or plain inputs, for one token, with
// r = 1 / sqrt(dot(x, x) / K + eps):
//   plain   dot((x * r) * gain, W[n])
//   bf16    dot(BF16(x * r), W[n])
//   fp8     dot(E4M3((x * r) * operand_scale), codes[n]) * (row_scales[n] / operand_scale)
//   int4    r * merge over the 16 segments of K (layout/k_segments.h) of
//             the sum over the segment's groups, ascending, starting from +0, of
//             scale[n, group] * dot over the group's columns of (F16(x), code[n]), where a backend may
//             take each product F16(x) * code apart into F16(x) * (code + 8) - F16(x) * 8
#pragma once

#include <cstdint>
#include <variant>

#include "kernels/tensor.h"

namespace fut {

// expand: the E4M3 matrix that stands for one of INT4 codes where products of prompts have no other copy
// shapes    weight [N, K] in any order, column_scales [S] or null, codes [N, K] and row_scales [N] of
//           the sources' rows in their own order
// limits    K a multiple of 16 S; column_scales powers of two (caller promises); codes 16-byte aligned
// rounding  w = code * scale / column_scales[k / (K / S)], exact; row_scales[n] =
//           expanded_row_scale(largest |scale / column_scale| of the row) of
//           numeric/activation_scales.h, a power of two; codes[n, k] = E4M3(w / row_scales[n])
// bound     bytes
struct ExpandArgs {
  Int4Matrix weight;
  const float* column_scales = nullptr;
  int num_column_scales = 0;
  std::uint8_t* codes = nullptr;
  float* row_scales = nullptr;
};
void check(const ExpandArgs& a);

// embed: X[m] = T(W[token_ids[m]]), T the type of out
// shapes    token_ids [M], weight [V, H], out [M, H]
// limits    M >= 1; 0 <= token_ids[m] < V (caller promises); out F32 or BF16
// bound     bytes: M * H * (dtype + out dtype)
struct EmbedArgs {
  const std::int32_t* token_ids = nullptr;
  std::int64_t num_tokens = 0;
  DenseMatrix weight;
  ActivationView out;
};
void check(const EmbedArgs& a);

// The three projections of attention: apart, or stacked (q, then k, then v) as one matrix.
struct QkvMatrices {
  DenseMatrix q_proj, k_proj, v_proj;
};
using QkvWeights = std::variant<QkvMatrices, Weights>;

// Gate and up: apart, or stacked (gate, then up; GateUp order where the matrix has an order).
struct GateUpMatrices {
  DenseMatrix gate_proj, up_proj;
};
using GateUpWeights = std::variant<GateUpMatrices, Weights>;

// qkv_rope_append: q = rope(proj(x, Wq)) to q_out; k = rope(proj(x, Wk)) and v = proj(x, Wv) into
// the cache, at each token's own position, or to k_out and v_out, from where `attention` takes them
// shapes    x [M, H], gain [H] or null, weights [(Nq + 2 Nkv) * D, H], q_out [M, Nq*D], k_out and
//           v_out [M, Nkv*D]
// limits    D even, with INT4 weights a multiple of 16; Nq a multiple of Nkv; positions <
//           rope_positions; pages cover every position;
//           exactly one of `kv` and `k_out, v_out` is given
// types     x F32 or BF16 (fp8, bf16); outputs and cache: all F32, or all BF16; plain F32 alone;
//           an Int4Matrix is in the order RowOrder::qkv
// rope      pair i of a head is (v[i], v[i + D/2]); rotated by cos/sin row `position` of the table
// rotation  rotation_block > 0 (BF16 outputs alone): after RoPE each block of that many dims of a
//           q or k head is multiplied by a Hadamard matrix as numeric/hadamard.h has it, in float32
// rounding  proj; RoPE: two products and one sum, in float32; rotation; then once to the type
struct QkvRopeAppendArgs {
  ConstActivationView x;
  const float* gain = nullptr;
  float eps = 0;
  QkvWeights weights;
  float operand_scale = 1;  // fp8: a power of two
  int num_q_heads = 0, num_kv_heads = 0, head_dim = 0;
  const float* rope_cos = nullptr;  // [rope_positions, D/2]
  const float* rope_sin = nullptr;
  int rope_positions = 0;
  int rotation_block = 0;
  RaggedBatch batch;
  KvPages kv;  // data null: to k_out and v_out
  ActivationView q_out, k_out, v_out;
};
void check(const QkvRopeAppendArgs& a);

// attention: causal attention of every token of the step over its own sequence's keys, its own
//            included. One op for prefill and decode.
// shapes    q [M, Nq*D], out [M, Nq*D]; query head h reads KV head h / (Nq/Nkv)
// limits    with KvPages the keys of the step are in the cache already and k, v are not given; with
//           KvPagesInt4 they are k and v [M, Nkv*D], of q's type, and the op stores them afterwards
// types     q, cache: F32, F32; else q F32 or BF16 and the cache BF16 or INT4
//           out F32 where q and cache are F32; else BF16, F16, or E4M3 with out_scales
// rotation  rotation_block > 0 (F32 q and k with an INT4 cache alone, where qkv_rope_append did not
//           rotate): q and k are rotated as there, before they are rounded
// rounding  plain (F32 q and cache): scores = dot(q, k) * 1/sqrt(D); maximum, exp and their sum in
//           float32, keys ascending; out = (sum_i p_i v_i) / sum_i p_i, keys ascending
//           else q and k and v are rounded to BF16; scores as above; p_i = exp(score - maximum);
//           out = T((sum_i BF16(p_i) v_i) / sum_i p_i), the lower sum over unrounded p_i
// int4      key i < begin (`begin` being the first position of its sequence in this step) is read
//           as stored: raw where layout::is_raw(i, begin), else as codes u with scale s and minimum
//           m a group of dims, number = m + s * u; keys of the step are read from k and v
//           BF16 q (prefill): codes are widened to BF16(m + s * u), s * u rounded first, and used
//           like raw keys: each sum runs over all keys, ascending
//           F32 q (decode): a coded key's dot(q, k) is the sum over its groups, ascending, of
//           s * dot(u, q) + m * dot(ones, q); sums over coded keys (C) and over raw ones (R) run
//           apart, each ascending, u and m of the group that the dim belongs to:
//           out = T(((sum_C F16(p_i * s_i) u_i + sum_C p_i * m_i) + sum_R BF16(p_i) v_i) /
//                   (sum_C p_i + sum_R p_i))
//           F16 here rounds to subnormals and to zero; p_i * s_i and p_i * m_i take unrounded p_i
// store     k and v in BF16 (after rotation) go to the sink row of positions < kSinkTokens and to
//           the tail row of the later ones >= 16 * floor(end / 16), end the length after the step;
//           blocks of 16 positions >= kSinkTokens that are complete now and were not at `begin` are
//           packed (numeric/kv_int4.h) from their rows in the tail and in k and v
// aliasing  out may not be q
struct AttentionArgs {
  ConstActivationView q;
  ConstActivationView k, v;  // INT4 cache alone
  int num_q_heads = 0, num_kv_heads = 0, head_dim = 0;
  int rotation_block = 0;
  RaggedBatch batch;
  KvCacheView kv;
  const float* out_scales = nullptr;  // E4M3 out: [Nkv], powers of two; out = E4M3(o * scale)
  ActivationView out;
  // The tokens are those of prompts. Another backend's order of sums may follow from that, and where q is
  // BF16 must not follow from how many tokens there are: a prompt's last pass may be one token.
  bool of_prompts = false;
};
void check(const AttentionArgs& a);

// linear_residual: R = T(R + x W^T), T the type of R (o_proj and down_proj)
// shapes    x [M, K], weight [N, K], residual [M, N] read and written, x_exponents [M] or null
// types     x F32 with any dense type (plain); BF16 with BF16; E4M3 with E4m3Matrix; F16 with
//           Int4Matrix in natural order. Residual F32, or BF16 (bf16 and fp8)
// rounding  plain, bf16: dot(x, W[n]), then one addition
//           fp8: dot(x, codes[n]) * (row_scales[n] / x_scale), then one addition
//           int4: the merge of proj without r, times 2^x_exponents[m] (exact), then one addition
struct LinearResidualArgs {
  ConstActivationView x;
  float x_scale = 1;                          // fp8: what x was multiplied by; a power of two
  const std::int32_t* x_exponents = nullptr;  // int4: x holds the values times 2^-exponent
  Weights weight;
  ActivationView residual;
};
void check(const LinearResidualArgs& a);

// gate_up_swiglu: out = silu(proj(x, Wg)) * proj(x, Wu)
// shapes    x [M, H], gain [H] or null, weights [2 F, H], out [M, F], out_exponents [M]
// types     x F32 or BF16 (fp8, bf16); out F32 (plain), BF16 (bf16), E4M3 (fp8), F16 (int4)
// rounding  proj; silu(v) = v / (1 + exp(-v)) step by step in float32; h = silu * up; then
//           bf16: BF16(h); fp8: E4M3(h * out_scale); int4: F16(h * 2^-e) with e =
//           swiglu_exponent(largest |h| of the token) of numeric/activation_scales.h
struct GateUpSwigluArgs {
  ConstActivationView x;
  const float* gain = nullptr;
  float eps = 0;
  GateUpWeights weights;
  float operand_scale = 1;                // fp8: a power of two
  float out_scale = 1;                    // fp8: a power of two
  std::int32_t* out_exponents = nullptr;  // int4
  ActivationView out;
};
void check(const GateUpSwigluArgs& a);

// lm_head: logits of chosen rows: out[i] = proj(x[rows[i]], W)
// shapes    x [M, H], rows [R] (ascending: caller promises), gain [H] or null, weight [V, H],
//           out [R, V]
// limits    R >= 1; 0 <= rows[i] < M (caller promises); weight dense (plain, bf16) or Int8Matrix
// types     x F32 or BF16 (bf16, Int8Matrix); out F32
// rounding  plain, bf16: proj
//           Int8Matrix, without a gain: (dot(F16(x), codes[n]) * row_scales[n]) * r
// rescoring with an Int8Matrix: a BF16 matrix of the same shape. The kRescoredLogits largest logits
//           of a row (ties to the lower id, a NaN below all others) are computed once more from it,
//           as bf16; those below keep their INT8 values. data null: off
inline constexpr std::int64_t kRescoredLogits = 64;
struct LmHeadArgs {
  ConstActivationView x;
  const std::int32_t* rows = nullptr;
  std::int64_t num_rows = 0;
  const float* gain = nullptr;
  float eps = 0;
  Weights weight;
  DenseMatrix rescoring;
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
// shapes    logits [R, V]; params, draw_index, history_begins, history_ends, next_ids [R]
// limits    params in the ranges above; history ids in [0, V)
// penalties over the ids history[history_begins[i] .. history_ends[i]] (the window that counts; the
//           windows need not be neighbours, so that each can grow in a region of its own)
// top-k     off from V on; ties at its edge go to the lower ids
// top-p     the shortest run of candidates, best first, that holds top_p of what top-k left over
// min-p     min_p = 1 keeps the best candidate alone
// draw      u = philox_uniform(seed, draw_index): the same number on every backend; candidates in
//           order of falling logit, ties by rising id; the first whose running probability sum
//           exceeds u times the total. At least one candidate survives every stage.
// rounding  float64 from the penalties on; penalised logits back to float32 and into its finite
//           range. The GPU rounds a weight to a multiple of 2^-46 (V to 131072) of the largest, so
//           that sums do not depend on their order: another token than the CPU's only where u or
//           top_p lies within V * 2^-46 of a border
// faults    a row with a NaN or an infinite maximum gives -1 (kNoToken), never a token
struct SampleArgs {
  MatrixView<const float> logits;
  const SampleParams* params = nullptr;
  const std::uint64_t* draw_index = nullptr;
  const std::int32_t* history = nullptr;
  const std::int32_t* history_begins = nullptr;
  const std::int32_t* history_ends = nullptr;
  std::int32_t* next_ids = nullptr;
};
inline constexpr std::int32_t kNoToken = -1;
void check(const SampleArgs& a);

}  // namespace fut
