// Models from quantised folders: bytes go into memory as they lie in the file.
#include <cmath>

#include "engine/arena.h"
#include "engine/model.h"
#include "engine/packed_upload.h"
#include "engine/weight_bytes.h"
#include "kernels/error.h"
#include "kernels/numeric/activation_scales.h"

namespace fut {
// Gives every tensor its place in the arena, then has all of them brought there.
class PackedLoading {
 public:
  PackedLoading(Backend& backend, const PackedModel& packed, const ModelConfig& config,
                Precision precision, HeadChoice head, const Progress& progress,
                PrefillWeights prefill)
      : backend_(backend),
        packed_(packed),
        head_(head),
        expands_(prefill == PrefillWeights::Int4),
        arena_(backend, packed_weight_bytes(config, packed.info().options.group_size, precision,
                                            head, prefill)
                                .total() -
                            (expands_ ? expanded_bytes(config).total : 0)),
        upload_(backend, packed, progress) {
    model_.config_ = config;
    model_.precision_ = precision;
    model_.operand_scale_ = normalised_operand_scale(config.hidden_size);
  }

  Model run(const ParallelFor& parallel_for, LoadTimes* times) && {
    model_.embed_tokens_ = dense(PackedGlobalTensor::EmbedTokens);
    for (int i = 0; i < model_.config_.num_layers; ++i) {
      model_.layers_.push_back(fp8_layer(i));
      if (model_.precision_ == Precision::Int4) model_.decode_layers_.push_back(int4_layer(i));
    }
    put_head();
    const LoadTimes taken = upload_.run(parallel_for);
    if (times != nullptr) *times = taken;
    read_scales();
    model_.arena_ = arena_.take();
    if (expands_) model_.make_expanded(backend_);
    return std::move(model_);
  }

 private:
  // The four matrices of a layer, each as read(matrix) has it.
  template <class Read>
  static LayerWeights matrices(const Read& read) {
    LayerWeights w;
    w.qkv_proj = Weights(read(PackedMatrix::QkvProj));
    w.o_proj = read(PackedMatrix::OProj);
    w.gate_up_proj = Weights(read(PackedMatrix::GateUpProj));
    w.down_proj = read(PackedMatrix::DownProj);
    return w;
  }

  LayerWeights fp8_layer(int i) {
    LayerWeights w;
    if (!expands_) w = matrices([&](PackedMatrix matrix) { return e4m3(i, matrix); });
    const TensorInfo& attention = packed_.layer(i, PackedLayerTensor::AttentionOutputScale);
    w.attention_output_scales = reinterpret_cast<const float*>(put_scales(attention, true));
    put_scales(packed_.layer(i, PackedLayerTensor::SwigluOutputScale), false);
    return w;
  }

  LayerWeights int4_layer(int i) {
    return matrices([&](PackedMatrix matrix) { return int4(i, matrix); });
  }

  E4m3Matrix e4m3(int i, PackedMatrix matrix) {
    const TensorInfo& codes = packed_.layer(i, matrix, PackedPart::E4m3);
    E4m3Matrix m;
    m.codes = put<std::uint8_t>(codes);
    m.row_scales = put<float>(packed_.layer(i, matrix, PackedPart::E4m3Scale));
    m.rows = codes.shape[0];
    m.cols = codes.shape[1];
    return m;
  }

  Int4Matrix int4(int i, PackedMatrix matrix) {
    const PackedMatrixShape shape = packed_matrix_shape(model_.config_, matrix);
    Int4Matrix m;
    m.packed = put<std::uint8_t>(packed_.layer(i, matrix, PackedPart::Int4));
    m.tile = shape.tile(packed_.info().options.group_size);
    m.order = shape.order;
    m.rows = shape.rows;
    m.cols = shape.cols;
    return m;
  }

  DenseMatrix dense(PackedGlobalTensor which) {
    const TensorInfo& info = packed_.global(which);
    return {info.dtype, put<std::byte>(info), info.shape[0], info.shape[1]};
  }

  void put_head() {
    if (head_ == HeadChoice::Bf16) {
      model_.lm_head_ = dense(PackedGlobalTensor::LmHead);
      return;
    }
    const TensorInfo& codes = packed_.global(PackedGlobalTensor::LmHeadInt8);
    Int8Matrix m;
    m.codes = put<std::int8_t>(codes);
    m.row_scales = put<float>(packed_.global(PackedGlobalTensor::LmHeadInt8Scale));
    m.rows = codes.shape[0];
    m.cols = codes.shape[1];
    model_.lm_head_ = m;
    if (head_ == HeadChoice::Int8Rescored) {
      model_.rescoring_head_ = dense(PackedGlobalTensor::LmHead);
    }
  }

  // Scales that the host looks at, in the order of the layers: of attention, of SwiGLU, ...
  std::byte* put_scales(const TensorInfo& info, bool on_device) {
    std::byte* place = on_device ? arena_.place(info.bytes) : nullptr;
    scales_.push_back({&info, std::vector<float>(info.bytes / sizeof(float))});
    upload_.add(info, place, std::as_writable_bytes(std::span(scales_.back().values)).data());
    return place;
  }

  void read_scales() {
    for (const Scales& scales : scales_) require_powers_of_two(scales);
    for (std::size_t i = 0; i < model_.layers_.size(); ++i) {
      model_.layers_[i].swiglu_output_scale = scales_[2 * i + 1].values.front();
    }
  }

  struct Scales {
    const TensorInfo* info;
    std::vector<float> values;
  };

  void require_powers_of_two(const Scales& scales) const {
    for (std::size_t i = 0; i < scales.values.size(); ++i) {
      const float scale = scales.values[i];
      int exponent = 0;
      if (std::isnormal(scale) && std::frexp(scale, &exponent) == 0.5F) continue;
      throw data_error(
          "{}: tensor {}: element {} is {}, which is no power of two: the file was not written by "
          "fut quantize; quantise the checkpoint again",
          packed_.path().string(), scales.info->name, i, scale);
    }
  }

  template <class T>
  const T* put(const TensorInfo& info) {
    std::byte* place = arena_.place(info.bytes);
    upload_.add(info, place);
    return reinterpret_cast<const T*>(place);
  }

  Backend& backend_;
  const PackedModel& packed_;
  HeadChoice head_;
  bool expands_;
  Model model_;
  Arena arena_;
  std::vector<Scales> scales_;
  PackedUpload upload_;
};

Model Model::load_packed(Backend& backend, const PackedModel& packed, const ModelConfig& config,
                         Precision precision, HeadChoice head, const Progress& progress,
                         const ParallelFor& parallel_for, LoadTimes* times,
                         PrefillWeights prefill) {
  if (!is_quantized(precision)) {
    throw usage_error(
        "--precision {} needs the original weights and {} holds quantised ones: pass the folder "
        "that it was made from",
        precision_name(precision), packed.path().parent_path().string());
  }
  if (prefill == PrefillWeights::Int4 && precision != Precision::Int4) {
    throw usage_error("--prefill-weights int4 goes with --precision int4 alone");
  }
  if (head != HeadChoice::Int8 && !packed.has(PackedGlobalTensor::LmHead)) {
    throw data_error(
        "{}: was written without a BF16 head; use the INT8 head, or quantise the checkpoint "
        "again",
        packed.path().string());
  }
  return PackedLoading(backend, packed, config, precision, head, progress, prefill)
      .run(parallel_for, times);
}

}  // namespace fut
