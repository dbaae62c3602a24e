// The table of packed_tensors.h as code; sizes in the words of config.json for messages.
#include "loader/packed_tensors.h"

#include <array>
#include <fmt/format.h>

#include "kernels/check.h"

namespace fut {
namespace {

using layout::Int4Tile;
using layout::RowOrder;

constexpr std::array<std::string_view, kNumPackedMatrices> kMatrixNames = {
    "qkv_proj", "o_proj", "gate_up_proj", "down_proj"};
constexpr std::array<std::string_view, kNumPackedParts> kPartNames = {"int4", "e4m3", "e4m3_scale"};

std::string in_layer(int layer, std::string_view name) {
  return fmt::format("layers.{}.{}", layer, name);
}

int query_width(const ModelConfig& config) {
  return config.num_q_heads * config.head_dim;
}

PackedTensor matrix_part(const ModelConfig& config, int group_size, PackedMatrix matrix,
                         PackedPart part) {
  const PackedMatrixShape shape = packed_matrix_shape(config, matrix);
  PackedTensor tensor;
  tensor.name = fmt::format("{}.{}", shape.name, kPartNames[static_cast<std::size_t>(part)]);
  switch (part) {
    case PackedPart::Int4:
      tensor.shape = {shape.tile(group_size).bytes()};
      break;
    case PackedPart::E4m3:
      tensor.shape = {shape.rows, shape.cols};
      break;
    case PackedPart::E4m3Scale:
      tensor.dtype = DType::F32;
      tensor.shape = {shape.rows};
      break;
  }
  return tensor;
}

// Those of a layer that belong to no matrix; all of them F32 vectors.
PackedTensor layer_vector(const ModelConfig& config, PackedLayerTensor which) {
  const auto vector = [](const char* name, std::int64_t size) {
    return PackedTensor{name, DType::F32, {size}};
  };
  switch (which) {
    case PackedLayerTensor::AttentionOutputScale:
      return vector("attention_output_scale", config.num_kv_heads);
    case PackedLayerTensor::SwigluOutputScale:
      return vector("swiglu_output_scale", 1);
    case PackedLayerTensor::StatsQkvInput:
      return vector("stats.qkv_input", config.hidden_size);
    case PackedLayerTensor::StatsOInput:
      return vector("stats.o_input", query_width(config));
    case PackedLayerTensor::StatsGateUpInput:
      return vector("stats.gate_up_input", config.hidden_size);
    case PackedLayerTensor::StatsDownInput:
      return vector("stats.down_input", config.intermediate_size);
    case PackedLayerTensor::StatsSwiglu:
      return vector("stats.swiglu", 2);
    case PackedLayerTensor::StatsValueAmax:
      return vector("stats.value_amax", config.num_kv_heads);
    default:
      break;
  }
  throw runtime_failure("no packed tensor has the number {}", static_cast<int>(which));
}

}  // namespace

std::uint64_t tensor_bytes(const PackedTensor& tensor) {
  auto bytes = static_cast<std::uint64_t>(dtype_bytes(tensor.dtype));
  for (const std::int64_t extent : tensor.shape) bytes *= static_cast<std::uint64_t>(extent);
  return bytes;
}

std::string packed_matrix_name(int layer, PackedMatrix matrix) {
  return in_layer(layer, kMatrixNames[static_cast<std::size_t>(matrix)]);
}

PackedMatrixShape packed_matrix_shape(const ModelConfig& config, PackedMatrix matrix) {
  PackedMatrixShape shape;
  shape.name = kMatrixNames[static_cast<std::size_t>(matrix)];
  switch (matrix) {
    case PackedMatrix::QkvProj:
      shape.order = RowOrder::qkv(config.num_q_heads, config.num_kv_heads, config.head_dim);
      shape.cols = config.hidden_size;
      break;
    case PackedMatrix::OProj:
      shape.order = RowOrder::natural(config.hidden_size);
      shape.cols = query_width(config);
      break;
    case PackedMatrix::GateUpProj:
      shape.order = RowOrder::gate_up(config.intermediate_size);
      shape.cols = config.hidden_size;
      break;
    case PackedMatrix::DownProj:
      shape.order = RowOrder::natural(config.hidden_size);
      shape.cols = config.intermediate_size;
      break;
  }
  shape.rows = shape.order.source_rows;
  return shape;
}

void check_packable(const ModelConfig& config, int group_size) {
  if (group_size != 64 && group_size != 128) {
    throw usage_error("group size {}: INT4 weights come in groups of 64 or 128 columns",
                      group_size);
  }
  if (config.head_dim != 64 && config.head_dim != 128) {
    throw data_error(
        "head_dim is {}, quantised models need 64 or 128; run the checkpoint with --precision f32 "
        "or bf16",
        config.head_dim);
  }
  for (int i = 0; i < kNumPackedMatrices; ++i) {
    const PackedMatrixShape shape = packed_matrix_shape(config, static_cast<PackedMatrix>(i));
    if (Int4Tile::packable(shape.rows, shape.cols, group_size)) continue;
    throw data_error(
        "{} of {} x {} cannot be cut into INT4 groups of {}: its width must be a multiple of {}; "
        "run the checkpoint with --precision f32 or bf16",
        shape.name, shape.rows, shape.cols, group_size, Int4Tile::kColsMultiple);
  }
}

PackedTensor packed_layer_tensor(const ModelConfig& config, int group_size, int layer,
                                 PackedLayerTensor which) {
  const int number = static_cast<int>(which);
  PackedTensor tensor =
      number < kNumPackedMatrices * kNumPackedParts
          ? matrix_part(config, group_size, static_cast<PackedMatrix>(number / kNumPackedParts),
                        static_cast<PackedPart>(number % kNumPackedParts))
          : layer_vector(config, which);
  tensor.name = in_layer(layer, tensor.name);
  return tensor;
}

PackedTensor packed_global_tensor(const ModelConfig& config, PackedGlobalTensor which) {
  const std::int64_t vocabulary = config.vocab_size;
  const std::int64_t hidden = config.hidden_size;
  switch (which) {
    case PackedGlobalTensor::EmbedTokens:
      return {"model.embed_tokens.weight", DType::BF16, {vocabulary, hidden}};
    case PackedGlobalTensor::LmHeadInt8:
      return {"lm_head.int8", DType::U8, {vocabulary, hidden}};
    case PackedGlobalTensor::LmHeadInt8Scale:
      return {"lm_head.int8_scale", DType::F32, {vocabulary}};
    case PackedGlobalTensor::LmHead:
      break;
  }
  return {"lm_head.weight", DType::BF16, {vocabulary, hidden}};
}

std::vector<PackedTensor> packed_tensors(const ModelConfig& config, int group_size,
                                         bool with_bf16_head) {
  std::vector<PackedTensor> tensors;
  tensors.push_back(packed_global_tensor(config, PackedGlobalTensor::EmbedTokens));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (int i = 0; i < kNumPackedLayerTensors; ++i) {
      tensors.push_back(
          packed_layer_tensor(config, group_size, layer, static_cast<PackedLayerTensor>(i)));
    }
  }
  tensors.push_back(packed_global_tensor(config, PackedGlobalTensor::LmHeadInt8));
  tensors.push_back(packed_global_tensor(config, PackedGlobalTensor::LmHeadInt8Scale));
  if (with_bf16_head) {
    tensors.push_back(packed_global_tensor(config, PackedGlobalTensor::LmHead));
  }
  return tensors;
}

}  // namespace fut
