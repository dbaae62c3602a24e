// See the header. Operations are those of kernels/op_cost.h.
#include "engine/roofline.h"

#include <algorithm>
#include <numeric>

#include "engine/kv_cache.h"
#include "kernels/op_cost.h"

namespace fut {
namespace {

std::int64_t decode_weight_bytes(const RooflineModel& model) {
  const WeightBytes& w = model.weights;
  std::size_t layers = w.layers;
  if (model.precision == Precision::Int4) layers = w.int4_copy;
  if (model.precision == Precision::Fp8) layers = w.fp8_copy;
  return static_cast<std::int64_t>(layers + (w.head == 0 ? w.embedding : w.head));
}

// Of all products of a pass with the weights of the layers.
double product_flops(const ModelConfig& config, std::int64_t tokens) {
  double sum = 0;
  for (int m = 0; m < kNumPackedMatrices; ++m) {
    sum += layer_product_flops(config, static_cast<PackedMatrix>(m), tokens);
  }
  return sum * config.num_layers;
}

double attention_flops(const ModelConfig& config, std::int64_t begin, std::int64_t tokens) {
  return layer_attention_flops(config, begin, tokens) * config.num_layers;
}

}  // namespace

double layer_product_flops(const ModelConfig& config, PackedMatrix matrix, std::int64_t tokens) {
  const PackedMatrixShape shape = packed_matrix_shape(config, matrix);
  LinearResidualArgs product;
  product.x = {nullptr, DType::BF16, tokens, shape.cols, shape.cols};
  product.weight = DenseMatrix{DType::BF16, nullptr, shape.rows, shape.cols};
  return static_cast<double>(cost(product).flops);
}

double layer_attention_flops(const ModelConfig& config, std::int64_t begin, std::int64_t tokens) {
  std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens));
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(begin));
  const std::int32_t q_indptr[] = {0, static_cast<std::int32_t>(tokens)};
  const std::int32_t length = static_cast<std::int32_t>(begin + tokens);
  AttentionArgs attention;
  attention.num_q_heads = config.num_q_heads;
  attention.num_kv_heads = config.num_kv_heads;
  attention.head_dim = config.head_dim;
  attention.batch.num_sequences = 1;
  attention.batch.num_tokens = static_cast<int>(tokens);
  attention.batch.positions = positions.data();
  attention.batch.q_indptr = q_indptr;
  attention.batch.kv_lengths = &length;
  return static_cast<double>(cost(attention).flops);
}

PrefillFlops prefill_flops(const ModelConfig& config, std::span<const int> prompts) {
  PrefillFlops sum;
  for (const int tokens : prompts) {
    sum.products += product_flops(config, tokens);
    sum.attention += attention_flops(config, 0, tokens);
  }
  return sum;
}

std::int64_t decode_step_bytes(const RooflineModel& model, int sequences,
                               std::int64_t depth_tokens) {
  return decode_weight_bytes(model) + kv_read_bytes(model.config, model.kv_cache, depth_tokens) *
                                          sequences * model.config.num_layers;
}

double decode_step_seconds(const RooflineModel& model, const Roof& roof, int sequences,
                           std::int64_t depth_tokens) {
  return static_cast<double>(decode_step_bytes(model, sequences, depth_tokens)) /
         roof.bytes_per_second;
}

double prefill_seconds(const RooflineModel& model, const Roof& roof, std::int64_t prompt_tokens) {
  const bool fp8 = is_quantized(model.precision);
  const double product_peak = fp8 ? roof.fp8_flops : roof.bf16_flops;
  const WeightBytes& w = model.weights;
  const bool expands = w.expanded > 0;
  // Expanded weights are written and read once more, and nothing is computed meanwhile.
  const double expanded = expands ? product_flops(model.config, 1) / 2 : 0;
  const double expanding = (static_cast<double>(w.int4_copy) + expanded) / roof.bytes_per_second;
  const double weights = expands ? expanded : static_cast<double>(fp8 ? w.fp8_copy : w.layers);
  double seconds = 0;
  for (std::int64_t begin = 0; begin < prompt_tokens; begin += kDefaultPrefillChunk) {
    const std::int64_t tokens = std::min<std::int64_t>(kDefaultPrefillChunk, prompt_tokens - begin);
    const double computing = product_flops(model.config, tokens) / product_peak +
                             attention_flops(model.config, begin, tokens) / roof.bf16_flops;
    seconds += std::max(computing, weights / roof.bytes_per_second) + (expands ? expanding : 0);
  }
  return seconds;
}

}  // namespace fut
