// Bytes and operations of each op, from its arguments.
#include "kernels/op_cost.h"

namespace fut {
namespace {

constexpr std::int64_t kFloatBytes = 4;

std::int64_t bytes_of(const WeightMatrix& weight) {
  return weight.rows * weight.cols * dtype_bytes(weight.dtype);
}

template <class T>
std::int64_t bytes_of(const MatrixView<T>& view) {
  return view.rows * view.cols * kFloatBytes;
}

std::int64_t product_flops(std::int64_t tokens, const WeightMatrix& weight) {
  return 2 * tokens * weight.rows * weight.cols;
}

}  // namespace

OpCost cost(const EmbedArgs& a) {
  const std::int64_t row_bytes = a.weight.cols * dtype_bytes(a.weight.dtype);
  return {a.num_tokens * row_bytes + bytes_of(a.out), 0};
}

OpCost cost(const QkvRopeAppendArgs& a) {
  const std::int64_t weight_bytes = bytes_of(a.q_proj) + bytes_of(a.k_proj) + bytes_of(a.v_proj);
  const std::int64_t appended_bytes = a.x.rows * (a.k_proj.rows + a.v_proj.rows) * kFloatBytes;
  const std::int64_t flops = product_flops(a.x.rows, a.q_proj) + product_flops(a.x.rows, a.k_proj) +
                             product_flops(a.x.rows, a.v_proj);
  return {bytes_of(a.x) + weight_bytes + bytes_of(a.q_out) + appended_bytes, flops};
}

OpCost cost(const AttentionArgs& a) {
  std::int64_t cached_tokens = 0;
  for (int s = 0; s < a.batch.num_sequences; ++s) cached_tokens += a.batch.kv_lengths[s];
  std::int64_t scores = 0;  // of one head
  for (int t = 0; t < a.batch.num_tokens; ++t) scores += a.batch.positions[t] + 1;
  const std::int64_t cache_bytes = 2 * cached_tokens * a.num_kv_heads * a.head_dim * kFloatBytes;
  // Each score is a dot product over head_dim and weighs one value of head_dim.
  return {bytes_of(a.q) + cache_bytes + bytes_of(a.out), 4 * scores * a.num_q_heads * a.head_dim};
}

OpCost cost(const LinearResidualArgs& a) {
  return {bytes_of(a.x) + bytes_of(a.weight) + 2 * bytes_of(a.residual),
          product_flops(a.x.rows, a.weight)};
}

OpCost cost(const GateUpSwigluArgs& a) {
  return {bytes_of(a.x) + bytes_of(a.gate_proj) + bytes_of(a.up_proj) + bytes_of(a.out),
          product_flops(a.x.rows, a.gate_proj) + product_flops(a.x.rows, a.up_proj)};
}

OpCost cost(const LmHeadArgs& a) {
  return {a.num_rows * a.x.cols * kFloatBytes + bytes_of(a.weight) + bytes_of(a.out),
          product_flops(a.num_rows, a.weight)};
}

OpCost cost(const SampleArgs& a) {
  return {bytes_of(a.logits), 0};
}

}  // namespace fut
