// See the header.
#include "engine/weight_bytes.h"

#include <algorithm>

#include "engine/arena.h"
#include "engine/packed_upload.h"
#include "loader/packed_tensors.h"

namespace fut {
namespace {

// A tensor as a checkpoint has it.
struct StoredTensor {
  std::vector<std::int64_t> shape;
  DType dtype = DType::BF16;

  [[nodiscard]] std::size_t elements() const {
    std::size_t count = 1;
    for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
    return count;
  }
  [[nodiscard]] std::size_t bytes() const {
    return elements() * static_cast<std::size_t>(dtype_bytes(dtype));
  }
};

// Adds up what CheckpointLoading puts into its arena.
class CheckpointSum {
 public:
  explicit CheckpointSum(Precision precision) : precision_(precision) {
    sum_.precision = precision;
  }

  void add(std::size_t WeightBytes::*part, const StoredTensor& tensor) {
    const bool as_stored = precision_ == Precision::F32;
    sum_.passing = std::max(sum_.passing, passing(tensor));
    if (tensor.shape.size() == 1) {  // a gain: widened, or folded into its readers
      if (as_stored) sum_.*part += Arena::aligned(tensor.elements() * sizeof(float));
    } else {
      sum_.*part += Arena::aligned(as_stored ? tensor.bytes() : bf16_bytes(tensor));
    }
  }

  [[nodiscard]] const WeightBytes& sum() const { return sum_; }

 private:
  [[nodiscard]] static std::size_t bf16_bytes(const StoredTensor& tensor) {
    return tensor.elements() * sizeof(std::uint16_t);
  }
  // The bytes read; where they are folded and rounded, as float32 and as BF16 too.
  [[nodiscard]] std::size_t passing(const StoredTensor& tensor) const {
    if (precision_ == Precision::F32) return tensor.bytes();
    return tensor.bytes() + tensor.elements() * sizeof(float) + bf16_bytes(tensor);
  }

  Precision precision_;
  WeightBytes sum_;
};

// `layer` and `global` give the StoredTensor of a LayerTensor or GlobalTensor.
template <class Layer, class Global>
WeightBytes sum_of(int num_layers, Precision precision, bool head_is_tied, const Layer& layer,
                   const Global& global) {
  CheckpointSum sum(precision);
  sum.add(&WeightBytes::embedding, global(GlobalTensor::EmbedTokens));
  sum.add(&WeightBytes::layers, global(GlobalTensor::FinalNorm));
  for (int i = 0; i < num_layers; ++i) {
    for (int t = 0; t < kNumLayerTensors; ++t) {
      sum.add(&WeightBytes::layers, layer(i, static_cast<LayerTensor>(t)));
    }
  }
  // Where the final gain is folded into the head, it is not the embedding any more.
  if (!head_is_tied || precision != Precision::F32) {
    sum.add(&WeightBytes::head, global(GlobalTensor::LmHead));
  }
  return sum.sum();
}

DType dtype_of(const ModelConfig& config) {
  if (config.torch_dtype == "float32") return DType::F32;
  if (config.torch_dtype == "float16") return DType::F16;
  return DType::BF16;
}

}  // namespace

WeightBytes checkpoint_weight_bytes(const Checkpoint& checkpoint, const ModelConfig& config,
                                    Precision precision) {
  const auto stored = [](const TensorInfo& info) { return StoredTensor{info.shape, info.dtype}; };
  return sum_of(
      config.num_layers, precision, checkpoint.head_is_tied(),
      [&](int i, LayerTensor which) { return stored(checkpoint.layer(i, which)); },
      [&](GlobalTensor which) { return stored(checkpoint.global(which)); });
}

WeightBytes checkpoint_weight_bytes(const ModelConfig& config, Precision precision) {
  const DType dtype = dtype_of(config);
  return sum_of(
      config.num_layers, precision, config.tie_word_embeddings,
      [&](int /*layer*/, LayerTensor which) {
        return StoredTensor{checkpoint_shape(config, which), dtype};
      },
      [&](GlobalTensor which) {
        return StoredTensor{checkpoint_shape(config, which), dtype};
      });
}

ExpandedBytes expanded_bytes(const ModelConfig& config) {
  std::size_t codes = 0, scales = 0;
  for (int m = 0; m < kNumPackedMatrices; ++m) {
    const PackedMatrixShape shape = packed_matrix_shape(config, static_cast<PackedMatrix>(m));
    codes = std::max(codes,
                     static_cast<std::size_t>(shape.rows) * static_cast<std::size_t>(shape.cols));
    scales = std::max(scales, static_cast<std::size_t>(shape.rows) * sizeof(float));
  }
  codes = Arena::aligned(codes);
  return {codes, codes + scales};
}

WeightBytes packed_weight_bytes(const ModelConfig& config, int group_size, Precision precision,
                                HeadChoice head, PrefillWeights prefill) {
  WeightBytes sum;
  sum.precision = precision;
  const auto add = [&](std::size_t WeightBytes::*part, const PackedTensor& tensor, int times) {
    const auto bytes = static_cast<std::size_t>(tensor_bytes(tensor));
    sum.*part += Arena::aligned(bytes) * static_cast<std::size_t>(times);
  };
  const auto add_global = [&](std::size_t WeightBytes::*part, PackedGlobalTensor which) {
    add(part, packed_global_tensor(config, which), 1);
  };
  const auto add_layers = [&](std::size_t WeightBytes::*part, PackedLayerTensor which) {
    add(part, packed_layer_tensor(config, group_size, 0, which), config.num_layers);
  };
  add_global(&WeightBytes::embedding, PackedGlobalTensor::EmbedTokens);
  for (int m = 0; m < kNumPackedMatrices; ++m) {
    const auto matrix = static_cast<PackedMatrix>(m);
    if (prefill == PrefillWeights::Fp8) {
      add_layers(&WeightBytes::fp8_copy, packed_part(matrix, PackedPart::E4m3));
      add_layers(&WeightBytes::fp8_copy, packed_part(matrix, PackedPart::E4m3Scale));
    }
    if (precision == Precision::Int4) {
      add_layers(&WeightBytes::int4_copy, packed_part(matrix, PackedPart::Int4));
    }
  }
  add_layers(prefill == PrefillWeights::Fp8 ? &WeightBytes::fp8_copy : &WeightBytes::int4_copy,
             PackedLayerTensor::AttentionOutputScale);
  if (prefill == PrefillWeights::Int4) sum.expanded = expanded_bytes(config).total;
  if (head != HeadChoice::Bf16) {
    add_global(&WeightBytes::head, PackedGlobalTensor::LmHeadInt8);
    add_global(&WeightBytes::head, PackedGlobalTensor::LmHeadInt8Scale);
  }
  if (head != HeadChoice::Int8) {
    add_global(head == HeadChoice::Bf16 ? &WeightBytes::head : &WeightBytes::rescoring_head,
               PackedGlobalTensor::LmHead);
  }
  sum.passing = PackedUpload::staging_bytes(sum.total());
  return sum;
}

}  // namespace fut
