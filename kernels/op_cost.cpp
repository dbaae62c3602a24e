// Bytes and operations of each op, from its arguments.
#include "kernels/op_cost.h"

#include <algorithm>
#include <type_traits>

namespace fut {
namespace {

constexpr std::int64_t kFloatBytes = 4;

std::int64_t bytes_of(const DenseMatrix& weight) {
  return weight.rows * weight.cols * dtype_bytes(weight.dtype);
}

std::int64_t bytes_of(const Int4Matrix& weight) {
  return weight.tile.bytes();
}

// E4m3Matrix, Int8Matrix: a byte a code.
template <class CodesByRow>
std::int64_t bytes_of(const CodesByRow& weight) {
  return weight.rows * (weight.cols + kFloatBytes);
}

std::int64_t bytes_of(const Weights& weights) {
  return std::visit([](const auto& weight) { return bytes_of(weight); }, weights);
}

std::int64_t bytes_of(const ConstActivationView& view) {
  return view.rows * view.cols * dtype_bytes(view.dtype);
}

OpCost product(std::int64_t tokens, const Weights& weights) {
  return {bytes_of(weights), 2 * tokens * weight_rows(weights) * weight_cols(weights)};
}

// The matrices of QkvWeights or GateUpWeights.
OpCost products(std::int64_t tokens, std::initializer_list<Weights> matrices) {
  OpCost sum;
  for (const Weights& weights : matrices) {
    const OpCost one = product(tokens, weights);
    sum.bytes += one.bytes;
    sum.flops += one.flops;
  }
  return sum;
}

// What attention reads of one sequence's keys and values that stand in the cache.
std::int64_t cached_bytes(const KvPages& kv, std::int64_t length, std::int64_t /*new_tokens*/) {
  return 2 * length * kv.page.num_kv_heads * kv.page.head_dim * dtype_bytes(kv.dtype);
}

std::int64_t cached_bytes(const KvPagesInt4& kv, std::int64_t length, std::int64_t new_tokens) {
  const std::int64_t begin = length - new_tokens;
  const std::int64_t sinks = std::min(begin, layout::kSinkTokens);
  const std::int64_t raw = begin > sinks ? sinks + begin % layout::kTailTokens : sinks;
  const std::int64_t raw_bytes = kv.page.head_dim * dtype_bytes(DType::BF16);
  const std::int64_t code_bytes =
      kv.page.head_dim / 2 + kv.page.num_groups() * layout::KvPageInt4::kParamBytes;
  return 2 * kv.page.num_kv_heads * (raw * raw_bytes + (begin - raw) * code_bytes);
}

}  // namespace

std::int64_t weight_bytes(const Weights& weights) {
  return bytes_of(weights);
}

std::int64_t weight_bytes(const QkvWeights& weights) {
  if (const auto* stacked = std::get_if<Weights>(&weights)) return bytes_of(*stacked);
  const auto& apart = std::get<QkvMatrices>(weights);
  return bytes_of(apart.q_proj) + bytes_of(apart.k_proj) + bytes_of(apart.v_proj);
}

std::int64_t weight_bytes(const GateUpWeights& weights) {
  if (const auto* stacked = std::get_if<Weights>(&weights)) return bytes_of(*stacked);
  const auto& apart = std::get<GateUpMatrices>(weights);
  return bytes_of(apart.gate_proj) + bytes_of(apart.up_proj);
}

OpCost cost(const EmbedArgs& a) {
  const std::int64_t row_bytes = a.weight.cols * dtype_bytes(a.weight.dtype);
  return {a.num_tokens * row_bytes + bytes_of(a.out), 0};
}

OpCost cost(const QkvRopeAppendArgs& a) {
  OpCost result = std::visit(
      [&](const auto& w) {
        if constexpr (std::is_same_v<decltype(w), const QkvMatrices&>) {
          return products(a.x.rows, {w.q_proj, w.k_proj, w.v_proj});
        } else {
          return product(a.x.rows, w);
        }
      },
      a.weights);
  const std::int64_t kv_elements = 2 * a.x.rows * a.num_kv_heads * a.head_dim;
  result.bytes += bytes_of(a.x) + bytes_of(a.q_out) + kv_elements * dtype_bytes(a.q_out.dtype);
  return result;
}

OpCost cost(const AttentionArgs& a) {
  OpCost result = {bytes_of(a.q) + bytes_of(a.k) + bytes_of(a.v) + bytes_of(a.out), 0};
  for (int s = 0; s < a.batch.num_sequences; ++s) {
    const std::int64_t new_tokens = a.batch.q_indptr[s + 1] - a.batch.q_indptr[s];
    result.bytes += std::visit(
        [&](const auto& kv) { return cached_bytes(kv, a.batch.kv_lengths[s], new_tokens); }, a.kv);
  }
  std::int64_t scores = 0;  // of one head
  for (int t = 0; t < a.batch.num_tokens; ++t) scores += a.batch.positions[t] + 1;
  // Each score is a dot product over head_dim and weighs one value of head_dim.
  result.flops = 4 * scores * a.num_q_heads * a.head_dim;
  return result;
}

OpCost cost(const LinearResidualArgs& a) {
  OpCost result = product(a.x.rows, a.weight);
  result.bytes += bytes_of(a.x) + 2 * bytes_of(a.residual);
  return result;
}

OpCost cost(const GateUpSwigluArgs& a) {
  OpCost result = std::visit(
      [&](const auto& w) {
        if constexpr (std::is_same_v<decltype(w), const GateUpMatrices&>) {
          return products(a.x.rows, {w.gate_proj, w.up_proj});
        } else {
          return product(a.x.rows, w);
        }
      },
      a.weights);
  result.bytes += bytes_of(a.x) + bytes_of(a.out);
  return result;
}

OpCost cost(const LmHeadArgs& a) {
  OpCost result = product(a.num_rows, a.weight);
  result.bytes += a.num_rows * a.x.cols * dtype_bytes(a.x.dtype) + bytes_of(a.out);
  if (a.rescoring.data != nullptr) {
    const std::int64_t products = a.num_rows * std::min(kRescoredLogits, a.out.cols) * a.x.cols;
    result.bytes += products * dtype_bytes(a.rescoring.dtype);
    result.flops += 2 * products;
  }
  return result;
}

OpCost cost(const SampleArgs& a) {
  return {bytes_of(a.logits), 0};
}

}  // namespace fut
