// A checkpoint folder's weights under the names that the engine uses. The one table that maps our
// matrices to tensor names is in expected_tensors.cpp. Every tensor that the configuration asks for
// is found exactly once and has the shape it must have; tensors nobody asked for are refused unless
// they are on a short list of harmless leftovers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "loader/model_config.h"
#include "loader/safetensors.h"

namespace fut {

// The tensors of a layer, and those of the model as a whole.
enum class LayerTensor {
  InputLayernorm,
  QProj,
  KProj,
  VProj,
  OProj,
  PostAttentionLayernorm,
  GateProj,
  UpProj,
  DownProj
};
inline constexpr int kNumLayerTensors = 9;
enum class GlobalTensor { EmbedTokens, FinalNorm, LmHead };

// The shape that config.json gives a tensor.
[[nodiscard]] std::vector<std::int64_t> checkpoint_shape(const ModelConfig& config,
                                                         LayerTensor which);
[[nodiscard]] std::vector<std::int64_t> checkpoint_shape(const ModelConfig& config,
                                                         GlobalTensor which);

class Checkpoint {
 public:
  // Opens model.safetensors.index.json with its shards, else model.safetensors. `config` may be
  // corrected: vocab_size follows the embedding's rows, with a notice. Throws Data (see above;
  // lists the first few missing files or tensors and their count). Never opens a file outside the
  // folder other than through links that lie in it.
  static Checkpoint open(const std::filesystem::path& folder, ModelConfig& config);

  // The tensor that serves the purpose; LmHead of a tied model is the embedding (or the one of the
  // two tensors that the file has).
  [[nodiscard]] const TensorInfo& layer(int layer, LayerTensor which) const;
  [[nodiscard]] const TensorInfo& global(GlobalTensor which) const;
  [[nodiscard]] bool head_is_tied() const { return head_is_tied_; }

  // Copies a tensor that layer() or global() returned.
  void read(const TensorInfo& info, std::span<std::byte> destination) const;
  // When all is read: throws Runtime where a file was written to since it was opened.
  void require_unchanged() const;

  [[nodiscard]] std::uint64_t total_bytes() const;  // of the tensors in use, each counted once
  [[nodiscard]] const std::vector<Safetensors>& files() const { return files_; }
  [[nodiscard]] const std::vector<std::string>& notices() const { return notices_; }

 private:
  Checkpoint() = default;

  std::vector<Safetensors> files_;
  std::vector<const TensorInfo*> layer_tensors_;   // [layer][LayerTensor], into files_
  std::vector<const TensorInfo*> global_tensors_;  // [GlobalTensor], into files_
  bool head_is_tied_ = false;
  std::vector<std::string> notices_;
};

}  // namespace fut
