// qkv_rope_append on the CPU: norm, three projections in one loop, then rotation and the way into
// the cache token by token.
#include <array>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/ragged.h"

namespace fut::cpu {
namespace {

// Rotates pair (in[i], in[i + half]) by the angle of column i. `out` may be `in`.
void rotate(const float* in, const float* cos, const float* sin, int half, float* out) {
  for (int i = 0; i < half; ++i) {
    const float a = in[i];
    const float b = in[i + half];
    out[i] = a * cos[i] - b * sin[i];
    out[i + half] = b * cos[i] + a * sin[i];
  }
}

// Rotates one token's queries in place and its keys into the cache, copies its values there.
void rotate_and_append(const QkvRopeAppendArgs& a, std::int64_t token, const float* k,
                       const float* v) {
  const int half = a.head_dim / 2;
  const std::int64_t position = a.batch.positions[token];
  const float* cos = a.rope_cos + position * half;
  const float* sin = a.rope_sin + position * half;
  for (int head = 0; head < a.num_q_heads; ++head) {
    float* q = a.q_out.row(token) + static_cast<std::int64_t>(head) * a.head_dim;
    rotate(q, cos, sin, half, q);
  }
  float* page = page_of_position(a.batch, a.kv, sequence_of_token(a.batch, token), position);
  const int slot = static_cast<int>(position % layout::kPageTokens);
  for (int head = 0; head < a.num_kv_heads; ++head) {
    const std::int64_t offset = static_cast<std::int64_t>(head) * a.head_dim;
    rotate(k + offset, cos, sin, half, page + a.kv.page.k_offset(head, slot));
    std::copy_n(v + offset, a.head_dim, page + a.kv.page.v_offset(head, slot));
  }
}

void check_positions(const QkvRopeAppendArgs& a) {
  check_ragged("qkv_rope_append", a.batch, a.kv);
  for (int t = 0; t < a.batch.num_tokens; ++t) {
    FUT_CHECK(a.batch.positions[t] < a.rope_positions,
              "qkv_rope_append: token {} stands at {}, the rope table has {} positions", t,
              a.batch.positions[t], a.rope_positions);
  }
}

}  // namespace

void qkv_rope_append(Workers& workers, const QkvRopeAppendArgs& a) {
  check(a);
  check_positions(a);
  const std::int64_t tokens = a.x.rows;
  const std::int64_t hidden = a.x.cols;
  const std::int64_t kv_cols = a.k_proj.rows;
  const std::int64_t widened_elements = workers.pool.num_threads() * kBlockRows * hidden;
  workers.scratch.reserve(tokens * (hidden + 2 * kv_cols) + widened_elements, 4);
  const MatrixView<float> normed = {workers.scratch.take(tokens * hidden), tokens, hidden, hidden};
  const MatrixView<float> k = {workers.scratch.take(tokens * kv_cols), tokens, kv_cols, kv_cols};
  const MatrixView<float> v = {workers.scratch.take(tokens * kv_cols), tokens, kv_cols, kv_cols};
  float* widened = workers.scratch.take(widened_elements);

  rms_norm(workers, a.x, nullptr, a.gain, a.eps, normed);
  const std::array projections = {Projection{a.q_proj, a.q_out}, Projection{a.k_proj, k},
                                  Projection{a.v_proj, v}};
  project(workers, {normed.data, tokens, hidden, hidden}, projections, widened);
  const std::int64_t rotate_work = 2 * (a.q_proj.rows + 2 * kv_cols);
  workers.pool.parallel_for(tokens, rotate_work, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) rotate_and_append(a, t, k.row(t), v.row(t));
  });
}

}  // namespace fut::cpu
