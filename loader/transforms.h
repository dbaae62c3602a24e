// What is done to weights before they are quantised, none of which changes the model's function:
// gains folded into their readers, rotations, powers of two moved between channels. On one matrix
// or pair at a time; which matrices of a layer, and in which order, is the caller's business.
//
// Matrices are float32. Each call computes in float64 and rounds a result once; where that is exact
// the comment says so.
#pragma once

#include <span>
#include <vector>

#include "loader/hadamard.h"
#include "loader/quantized_matrix.h"

namespace fut {

// ---- gains --------------------------------------------------------------------------------------

// W <- W diag(gain), for a reader of an RMSNorm whose own gain becomes one. Exact where both were
// BF16.
void fold_gain(HostMatrix& reader, std::span<const float> gain,
               const ParallelFor& parallel_for = {});

// ---- rotations ----------------------------------------------------------------------------------
//
// R of the hidden size, R1: the residual stream becomes x R, and as RMSNorm without gain commutes
// with it, embedding and readers (q, k, v, gate, up, head) take rotate_inputs, writers (o, down)
// rotate_outputs. Gains must be folded before, and a tied head untied.
// R of the size of a head, R2: v_proj takes rotate_outputs, o_proj rotate_inputs.

// W <- W R for each block of R.size() columns. Throws Data where the width is no multiple of it.
void rotate_inputs(HostMatrix& w, const Rotation& r, const ParallelFor& parallel_for);

// W <- R^T W for each block of R.size() rows.
void rotate_outputs(HostMatrix& w, const Rotation& r, const ParallelFor& parallel_for);

// ---- powers of two ------------------------------------------------------------------------------
//
// Channel j of one matrix is multiplied by 2^a_j and its counterpart in the other divided by it, so
// that every product of the two is the same to the last bit in BF16, FP16 or float32 (overflow and
// underflow apart). The exponents: with s_j the energy (mean square) of what is scaled and d_j that
// of its counterpart, an error that all channels share costs (sum s_j 4^a_j) (sum d_j 4^-a_j),
// which is least where s_j 4^a_j = d_j 4^-a_j up to a factor: a_j = log2(d_j / s_j) / 4, less its
// median (so that ordinary channels stay as they are), rounded.

struct AttentionShape {
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
};

// Energy of each output, sum_c w[r, c]^2 E[x_c^2]: correlations of inputs neglected. Without input
// energies these are taken as one.
[[nodiscard]] std::vector<double> output_energies(const HostMatrix& w,
                                                  std::span<const float> input_energies);

// One exponent for each KV head and RoPE pair (i, i + head_dim/2), [num_kv_heads, head_dim/2]: for
// the two rows of k_proj; the same rows of every query head that reads it are divided. RoPE mixes
// within a pair alone. Energies are of q and k before or after RoPE (the same for a pair),
// [heads, head_dim]. Exponents are cut back to what keeps every weight in the normal range of BF16.
[[nodiscard]] std::vector<int> choose_qk_exponents(const HostMatrix& q_proj,
                                                   const HostMatrix& k_proj,
                                                   const AttentionShape& shape,
                                                   std::span<const double> q_energies,
                                                   std::span<const double> k_energies,
                                                   const ParallelFor& parallel_for = {});
// What each row of q_proj and of k_proj below it is multiplied by, as an exponent.
[[nodiscard]] std::vector<std::int32_t> qk_row_exponents(const AttentionShape& shape,
                                                         std::span<const int> exponents);
void apply_qk_exponents(HostMatrix& q_proj, HostMatrix& k_proj, const AttentionShape& shape,
                        std::span<const int> exponents);

// One exponent for each row of up_proj; the same column of down_proj is divided. Energies are of
// the SwiGLU output, which is scaled with it (whoever holds its statistics scales them too).
[[nodiscard]] std::vector<int> choose_up_down_exponents(const HostMatrix& up_proj,
                                                        const HostMatrix& down_proj,
                                                        std::span<const double> swiglu_energies,
                                                        const ParallelFor& parallel_for = {});
void apply_up_down_exponents(HostMatrix& up_proj, HostMatrix& down_proj,
                             std::span<const int> exponents);

// The apply functions throw Data, naming matrix, row, column and exponent, where a weight would
// leave the normal range, and change nothing then.

}  // namespace fut
