// Sums over the buffers of a layer at a time, and the hidden states of all windows.
#include "engine/quantize_memory.h"

#include <algorithm>

#include "engine/gptq_on_device.h"
#include "engine/quantize.h"
#include "loader/packed_tensors.h"

namespace fut {
namespace {

std::uint64_t size(std::int64_t count, std::size_t each) {
  return static_cast<std::uint64_t>(count) * each;
}

// Of the matrices of a layer.
struct LayerWeights {
  std::int64_t all = 0, most = 0, most_packed = 0;

  LayerWeights(const ModelConfig& config, int group_size) {
    for (int m = 0; m < kNumPackedMatrices; ++m) {
      const PackedMatrixShape shape = packed_matrix_shape(config, static_cast<PackedMatrix>(m));
      const std::int64_t weights = std::int64_t{shape.rows} * shape.cols;
      all += weights;
      most = std::max(most, weights);
      most_packed = std::max<std::int64_t>(most_packed, shape.tile(group_size).bytes());
    }
  }
};

// A LayerRunner in BF16.
std::uint64_t runner_bytes(const ModelConfig& config, std::int64_t weights, std::int64_t tokens) {
  const std::int64_t q = std::int64_t{config.num_q_heads} * config.head_dim;
  const std::int64_t kv = std::int64_t{config.num_kv_heads} * config.head_dim;
  const layout::KvPageDense page{config.num_kv_heads, config.head_dim};
  const std::int64_t rows =
      tokens * (2 * q + config.intermediate_size + config.hidden_size + 2 * kv);
  const std::int64_t pages = layout::pages_for_tokens(tokens) * page.elements();
  return size(weights + rows + pages, sizeof(std::uint16_t)) +
         size(tokens * config.head_dim, sizeof(float)) + size(config.hidden_size, sizeof(float));
}

}  // namespace

CalibrationSize calibration_size(const ModelConfig& config, const PackedOptions& options,
                                 std::int64_t text_tokens) {
  const std::int64_t context = config.max_position_embeddings;
  const std::int64_t tokens = std::min(options.calibration_tokens, text_tokens);
  CalibrationSize calibration;
  calibration.longest_window = std::min<std::int64_t>(kStatisticsWindow, context);
  calibration.statistics_tokens = tokens;
  if (options.method == QuantMethod::Gptq) {
    calibration.statistics_tokens = std::min(tokens, kRtnCalibrationTokens);
    calibration.gptq_tokens = tokens;
    calibration.longest_window = std::min<std::int64_t>(kGptqWindow, context);
  }
  calibration.longest_window = std::min(calibration.longest_window, tokens);
  return calibration;
}

std::uint64_t quantizer_bytes(const ModelConfig& config, const PackedOptions& options,
                              const CalibrationSize& calibration) {
  const LayerWeights weights(config, options.group_size);
  const std::uint64_t runner = runner_bytes(config, weights.all, calibration.longest_window);
  const auto states = [&](std::int64_t tokens) {
    return size(tokens * config.hidden_size, sizeof(std::uint16_t));
  };
  const std::uint64_t layer = size(weights.all, sizeof(float)) + size(weights.most, 1) +
                              size(weights.most / options.group_size, sizeof(std::uint16_t)) +
                              size(weights.most_packed, 1);
  std::uint64_t bytes = runner + states(calibration.statistics_tokens) + layer;
  if (calibration.gptq_tokens == 0) return bytes;
  bytes += runner + 2 * states(calibration.gptq_tokens);
  return bytes + GptqOnDevice::bytes(matrix_limits(config));
}

}  // namespace fut
