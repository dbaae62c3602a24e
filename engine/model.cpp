// Models from checkpoints: copied as stored, or folded and rounded to BF16.
#include "engine/model.h"

#include <algorithm>
#include <cmath>

#include "engine/arena.h"
#include "engine/weight_bytes.h"
#include "engine/widen.h"
#include "kernels/error.h"
#include "kernels/numeric/formats.h"

namespace fut {
namespace {

std::vector<float> widened(const TensorInfo& info, std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / static_cast<std::size_t>(dtype_bytes(info.dtype)));
  widen(info.dtype, bytes, values);
  return values;
}

void require_finite(const TensorInfo& info, std::span<const float> values) {
  const auto bad =
      std::find_if_not(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  if (bad == values.end()) return;
  throw data_error(
      "tensor {}: element {} of {} is {}: the file is damaged or was written by a failed run; "
      "download or convert it again",
      info.name, bad - values.begin(), values.size(), *bad);
}

}  // namespace

// Reads tensors one by one into the arena.
class CheckpointLoading {
 public:
  CheckpointLoading(Backend& backend, const Checkpoint& checkpoint, const ModelConfig& config,
                    Precision precision, const Progress& progress, bool check_finite)
      : checkpoint_(checkpoint),
        progress_(progress),
        check_finite_(check_finite),
        total_(checkpoint.total_bytes()),
        arena_(backend, checkpoint_weight_bytes(checkpoint, config, precision).total()) {
    model_.config_ = config;
    model_.precision_ = precision;
  }

  Model run() && {
    model_.embed_tokens_ = matrix(checkpoint_.global(GlobalTensor::EmbedTokens), {});
    for (int i = 0; i < model_.config_.num_layers; ++i) model_.layers_.push_back(layer(i));
    const Gain final_norm = gain(checkpoint_.global(GlobalTensor::FinalNorm));
    model_.final_norm_ = final_norm.view;
    model_.lm_head_ = checkpoint_.head_is_tied() && !folds()
                          ? model_.embed_tokens_
                          : matrix(checkpoint_.global(GlobalTensor::LmHead), final_norm.folded);
    checkpoint_.require_unchanged();
    model_.arena_ = arena_.take();
    return std::move(model_);
  }

 private:
  // A gain that is kept as float32, or one that is folded into matrices.
  struct Gain {
    const float* view = nullptr;
    std::vector<float> folded;
  };

  [[nodiscard]] bool folds() const { return model_.precision_ != Precision::F32; }

  LayerWeights layer(int i) {
    const auto tensor = [&](LayerTensor which) -> const TensorInfo& {
      return checkpoint_.layer(i, which);
    };
    LayerWeights w;
    const Gain input = gain(tensor(LayerTensor::InputLayernorm));
    w.input_layernorm = input.view;
    w.qkv_proj = QkvMatrices{matrix(tensor(LayerTensor::QProj), input.folded),
                             matrix(tensor(LayerTensor::KProj), input.folded),
                             matrix(tensor(LayerTensor::VProj), input.folded)};
    w.o_proj = matrix(tensor(LayerTensor::OProj), {});
    const Gain post_attention = gain(tensor(LayerTensor::PostAttentionLayernorm));
    w.post_attention_layernorm = post_attention.view;
    w.gate_up_proj = GateUpMatrices{matrix(tensor(LayerTensor::GateProj), post_attention.folded),
                                    matrix(tensor(LayerTensor::UpProj), post_attention.folded)};
    w.down_proj = matrix(tensor(LayerTensor::DownProj), {});
    return w;
  }

  // The matrix as stored, or times `gain` by columns (none: as it is) and rounded to BF16.
  DenseMatrix matrix(const TensorInfo& info, std::span<const float> gain) {
    read(info);
    if (!folds()) {
      if (check_finite_) require_finite(info, widened(info, staging_));
      const DenseMatrix view{info.dtype, arena_.put(staging_), info.shape[0], info.shape[1]};
      report();
      return view;
    }
    const std::vector<float> values = widened(info, staging_);
    if (check_finite_) require_finite(info, values);
    const auto cols = static_cast<std::size_t>(info.shape[1]);
    std::vector<std::uint16_t> rounded(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      rounded[i] = f32_to_bf16(gain.empty() ? values[i] : values[i] * gain[i % cols]);
    }
    const DenseMatrix view{DType::BF16, arena_.put(std::as_bytes(std::span(rounded))),
                           info.shape[0], info.shape[1]};
    report();
    return view;
  }

  Gain gain(const TensorInfo& info) {
    read(info);
    std::vector<float> values = widened(info, staging_);
    if (check_finite_) require_finite(info, values);
    if (folds()) return {nullptr, std::move(values)};
    Gain kept{arena_.put<float>(std::as_bytes(std::span(values))), {}};
    report();
    return kept;
  }

  void read(const TensorInfo& info) {
    staging_.resize(info.bytes);
    checkpoint_.read(info, staging_);
    // A tied head is read twice where it is folded, and counted once.
    done_ = std::min(total_, done_ + info.bytes);
  }
  void report() const {
    if (progress_) progress_(done_, total_);
  }

  const Checkpoint& checkpoint_;
  const Progress& progress_;
  bool check_finite_;
  std::uint64_t done_ = 0;
  std::uint64_t total_;
  Model model_;
  Arena arena_;
  std::vector<std::byte> staging_;
};

ExpandArgs Model::expansion(int i, PackedMatrix matrix) const {
  const LayerWeights& w = decode_layers_[static_cast<std::size_t>(i)];
  ExpandArgs a;
  switch (matrix) {
    case PackedMatrix::QkvProj:
      a.weight = std::get<Int4Matrix>(std::get<Weights>(w.qkv_proj));
      break;
    case PackedMatrix::OProj:
      a.weight = std::get<Int4Matrix>(w.o_proj);
      // Its inputs come multiplied by their heads' scales.
      a.column_scales = layers_[static_cast<std::size_t>(i)].attention_output_scales;
      a.num_column_scales = config_.num_kv_heads;
      break;
    case PackedMatrix::GateUpProj:
      a.weight = std::get<Int4Matrix>(std::get<Weights>(w.gate_up_proj));
      break;
    case PackedMatrix::DownProj:
      a.weight = std::get<Int4Matrix>(w.down_proj);
      break;
  }
  a.codes = expanded_.as<std::uint8_t>();
  a.row_scales = expanded_row_scales();
  return a;
}

float* Model::expanded_row_scales() const {
  return reinterpret_cast<float*>(expanded_.as<std::uint8_t>() + expanded_bytes(config_).codes);
}

void Model::make_expanded(Backend& backend) {
  expanded_ = backend.allocate(expanded_bytes(config_).total);
  const auto place = [&](PackedMatrix matrix) {
    const PackedMatrixShape shape = packed_matrix_shape(config_, matrix);
    return E4m3Matrix{expanded_.as<std::uint8_t>(), expanded_row_scales(), shape.rows, shape.cols};
  };
  for (LayerWeights& w : layers_) {
    w.qkv_proj = Weights(place(PackedMatrix::QkvProj));
    w.o_proj = place(PackedMatrix::OProj);
    w.gate_up_proj = Weights(place(PackedMatrix::GateUpProj));
    w.down_proj = place(PackedMatrix::DownProj);
  }
}

Model Model::load(Backend& backend, const Checkpoint& checkpoint, const ModelConfig& config,
                  Precision precision, const Progress& progress, bool check_finite) {
  if (is_quantized(precision)) {
    throw usage_error(
        "--precision {} needs quantised weights and this folder holds a checkpoint: quantise it "
        "with fut quantize, or run it with --precision f32",
        precision_name(precision));
  }
  return CheckpointLoading(backend, checkpoint, config, precision, progress, check_finite).run();
}

}  // namespace fut
