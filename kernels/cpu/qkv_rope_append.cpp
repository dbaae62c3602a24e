// qkv_rope_append on the CPU: norm, the projections in one loop, then token by token RoPE, rotation
// and the way into the cache or to the outputs.
#include <vector>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/ragged.h"
#include "kernels/numeric/hadamard.h"

namespace fut::cpu {
namespace {

// Turns pair (v[i], v[i + half]) by the angle of column i, in place.
void apply_rope(const float* cos, const float* sin, int half, float* v) {
  for (int i = 0; i < half; ++i) {
    const float a = v[i];
    const float b = v[i + half];
    v[i] = a * cos[i] - b * sin[i];
    v[i + half] = b * cos[i] + a * sin[i];
  }
}

// One token's keys and values, head after head, to their slot of the page.
void append(const VectorLoops& loops, const QkvRopeAppendArgs& a, std::int64_t token,
            const float* k, const float* v) {
  const std::int64_t position = a.batch.positions[token];
  const int slot = static_cast<int>(position % layout::kPageTokens);
  const std::int64_t page = page_index(a.batch, sequence_of_token(a.batch, token), position);
  const int element_bytes = dtype_bytes(a.kv.dtype);
  auto* first = static_cast<std::byte*>(a.kv.data) + page * a.kv.page.elements() * element_bytes;
  for (int head = 0; head < a.num_kv_heads; ++head) {
    const std::int64_t offset = static_cast<std::int64_t>(head) * a.head_dim;
    loops.narrow(a.kv.dtype, k + offset, a.head_dim,
                 first + a.kv.page.k_offset(head, slot) * element_bytes);
    loops.narrow(a.kv.dtype, v + offset, a.head_dim,
                 first + a.kv.page.v_offset(head, slot) * element_bytes);
  }
}

// `y`: one token's queries, keys and values as projected; overwritten.
void finish_token(const VectorLoops& loops, const QkvRopeAppendArgs& a, std::int64_t token,
                  float* y) {
  const int half = a.head_dim / 2;
  const std::int64_t angles = std::int64_t{a.batch.positions[token]} * half;
  const std::int64_t q_cols = static_cast<std::int64_t>(a.num_q_heads) * a.head_dim;
  const std::int64_t kv_cols = static_cast<std::int64_t>(a.num_kv_heads) * a.head_dim;
  for (int head = 0; head < a.num_q_heads + a.num_kv_heads; ++head) {
    float* v = y + static_cast<std::int64_t>(head) * a.head_dim;
    apply_rope(a.rope_cos + angles, a.rope_sin + angles, half, v);
    if (a.rotation_block > 0) hadamard_blocks(v, a.head_dim, a.rotation_block);
  }
  const float* k = y + q_cols;
  const float* v = k + kv_cols;
  loops.narrow(a.q_out.dtype, y, q_cols, row_address(a.q_out, token));
  if (a.kv.data != nullptr) {
    append(loops, a, token, k, v);
  } else {
    loops.narrow(a.k_out.dtype, k, kv_cols, row_address(a.k_out, token));
    loops.narrow(a.v_out.dtype, v, kv_cols, row_address(a.v_out, token));
  }
}

void check_positions(const QkvRopeAppendArgs& a) {
  if (a.kv.data != nullptr) check_ragged("qkv_rope_append", a.batch, a.kv);
  for (int t = 0; t < a.batch.num_tokens; ++t) {
    FUT_CHECK(a.batch.positions[t] >= 0 && a.batch.positions[t] < a.rope_positions,
              "qkv_rope_append: token {} stands at {}, the rope table has {} positions", t,
              a.batch.positions[t], a.rope_positions);
  }
}

std::vector<Weights> parts_of(const QkvWeights& weights) {
  if (const auto* stacked = std::get_if<Weights>(&weights)) return {*stacked};
  const auto& apart = std::get<QkvMatrices>(weights);
  return {apart.q_proj, apart.k_proj, apart.v_proj};
}

}  // namespace

void qkv_rope_append(Workers& workers, const QkvRopeAppendArgs& a) {
  check(a);
  check_positions(a);
  const std::int64_t tokens = a.x.rows;
  const MatrixView<float> y = project_normed(
      workers, {a.x, nullptr, tokens, a.gain, a.eps, a.operand_scale}, parts_of(a.weights));
  workers.pool.parallel_for(tokens, 2 * y.cols, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) finish_token(workers.loops, a, t, y.row(t));
  });
}

}  // namespace fut::cpu
