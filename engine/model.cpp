// Copies a checkpoint's tensors into one allocation and hands out views.
#include "engine/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/error.h"
#include "kernels/numeric/formats.h"

namespace fut {
namespace {

constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::vector<float> widen(const TensorInfo& info, std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / static_cast<std::size_t>(dtype_bytes(info.dtype)));
  if (info.dtype == DType::F32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    values[i] = info.dtype == DType::BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
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

// The place of every tensor in the arena, filled in the order of the layers.
class ArenaLoader {
 public:
  ArenaLoader(Backend& backend, const Checkpoint& checkpoint, const Progress& progress,
              bool check_finite)
      : backend_(backend),
        checkpoint_(checkpoint),
        progress_(progress),
        check_finite_(check_finite) {}

  static std::size_t matrix_bytes(const TensorInfo& info) { return aligned(info.bytes); }
  static std::size_t gain_bytes(const TensorInfo& info) {
    return aligned(static_cast<std::size_t>(info.shape[0]) * sizeof(float));
  }

  void begin(std::byte* arena, std::uint64_t total) {
    cursor_ = arena;
    total_ = total;
  }

  WeightMatrix matrix(const TensorInfo& info) {
    const WeightMatrix view{info.dtype, cursor_, info.shape[0], info.shape[1]};
    read(info);
    if (check_finite_) require_finite(info, widen(info, staging_));
    put(staging_, matrix_bytes(info));
    return view;
  }

  const float* gain(const TensorInfo& info) {
    const auto* view = reinterpret_cast<const float*>(cursor_);
    read(info);
    const std::vector<float> values = widen(info, staging_);
    if (check_finite_) require_finite(info, values);
    put(std::as_bytes(std::span(values)), gain_bytes(info));
    return view;
  }

 private:
  void read(const TensorInfo& info) {
    staging_.resize(info.bytes);
    checkpoint_.read(info, staging_);
    done_ += info.bytes;
  }
  void put(std::span<const std::byte> bytes, std::size_t advance) {
    backend_.upload(cursor_, bytes);
    cursor_ += advance;
    if (progress_) progress_(done_, total_);
  }

  Backend& backend_;
  const Checkpoint& checkpoint_;
  const Progress& progress_;
  bool check_finite_;
  std::byte* cursor_ = nullptr;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
  std::vector<std::byte> staging_;
};

std::size_t arena_bytes(const Checkpoint& checkpoint, int num_layers) {
  std::size_t bytes = ArenaLoader::matrix_bytes(checkpoint.global(GlobalTensor::EmbedTokens)) +
                      ArenaLoader::gain_bytes(checkpoint.global(GlobalTensor::FinalNorm));
  if (!checkpoint.head_is_tied()) {
    bytes += ArenaLoader::matrix_bytes(checkpoint.global(GlobalTensor::LmHead));
  }
  for (int layer = 0; layer < num_layers; ++layer) {
    for (int t = 0; t < kNumLayerTensors; ++t) {
      const TensorInfo& info = checkpoint.layer(layer, static_cast<LayerTensor>(t));
      bytes +=
          info.shape.size() == 1 ? ArenaLoader::gain_bytes(info) : ArenaLoader::matrix_bytes(info);
    }
  }
  return bytes;
}

}  // namespace

Model Model::load(Backend& backend, const Checkpoint& checkpoint, const ModelConfig& config,
                  const Progress& progress, bool check_finite) {
  Model model;
  model.config_ = config;
  model.arena_ = backend.allocate(arena_bytes(checkpoint, config.num_layers));
  ArenaLoader loader(backend, checkpoint, progress, check_finite);
  loader.begin(model.arena_.as<std::byte>(), checkpoint.total_bytes());

  model.embed_tokens_ = loader.matrix(checkpoint.global(GlobalTensor::EmbedTokens));
  for (int i = 0; i < config.num_layers; ++i) {
    const auto tensor = [&](LayerTensor which) -> const TensorInfo& {
      return checkpoint.layer(i, which);
    };
    LayerWeights w;
    w.input_layernorm = loader.gain(tensor(LayerTensor::InputLayernorm));
    w.q_proj = loader.matrix(tensor(LayerTensor::QProj));
    w.k_proj = loader.matrix(tensor(LayerTensor::KProj));
    w.v_proj = loader.matrix(tensor(LayerTensor::VProj));
    w.o_proj = loader.matrix(tensor(LayerTensor::OProj));
    w.post_attention_layernorm = loader.gain(tensor(LayerTensor::PostAttentionLayernorm));
    w.gate_proj = loader.matrix(tensor(LayerTensor::GateProj));
    w.up_proj = loader.matrix(tensor(LayerTensor::UpProj));
    w.down_proj = loader.matrix(tensor(LayerTensor::DownProj));
    model.layers_.push_back(w);
  }
  model.final_norm_ = loader.gain(checkpoint.global(GlobalTensor::FinalNorm));
  model.lm_head_ = checkpoint.head_is_tied()
                       ? model.embed_tokens_
                       : loader.matrix(checkpoint.global(GlobalTensor::LmHead));
  return model;
}

}  // namespace fut
