// One layer at a time over windows of calibration text: each op apart, with weights that change
// between them. In float32, or in BF16 where a device keeps what it computes. Not the forward pass
// of generation: engine/forward.h.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

#include "engine/quantize_weights.h"
#include "kernels/backend.h"

namespace fut {

// Windows of token ids, each at positions from 0 on.
using CalibrationWindows = std::vector<std::vector<std::int32_t>>;

// Activations of one window in host memory, [tokens, width].
struct HostRows {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<float> values;

  [[nodiscard]] const float* row(std::int64_t r) const { return values.data() + r * cols; }
  [[nodiscard]] MatrixView<const float> view() const { return {values.data(), rows, cols, cols}; }
};

// The hidden states of all windows, in the backend's memory.
class HiddenStates {
 public:
  // The embedded windows: the embedding rounded to BF16, as a packed file has it. `type`: F32 or
  // BF16.
  HiddenStates(Backend& backend, const WeightTransforms& weights, const CalibrationWindows& windows,
               DType type = DType::F32);

  [[nodiscard]] std::int64_t num_windows() const { return std::ssize(begins_) - 1; }
  [[nodiscard]] ActivationView window(std::int64_t index) const;

  [[nodiscard]] std::size_t bytes() const { return data_.bytes(); }
  // All of them as bytes, and back from such.
  [[nodiscard]] std::vector<std::byte> save() const;
  void restore(std::span<const std::byte> bytes);

 private:
  Backend* backend_;
  std::vector<std::int64_t> begins_;  // first token of each window, and the number of tokens
  std::int64_t hidden_ = 0;
  DType type_;
  DeviceBuffer data_;
};

class LayerRunner {
 public:
  // Windows have at most `max_tokens` tokens. Takes the memory of one layer. `type` is that of
  // weights and activations: F32, or BF16 on a backend with offline_ops(). `tick` is called before
  // every window's attend() and feed(): what it throws ends a run that takes long.
  LayerRunner(Backend& backend, const ModelConfig& config, int max_tokens,
              std::function<void()> tick = {}, DType type = DType::F32);

  // Weights of the layer that runs next, in float32. Parts are one below the other, as
  // packed_tensors.h has it.
  using Parts = std::initializer_list<const HostMatrix*>;
  void set_qkv_proj(Parts parts) { upload(PackedMatrix::QkvProj, parts); }
  void set_o_proj(Parts parts) { upload(PackedMatrix::OProj, parts); }
  void set_gate_up_proj(Parts parts) { upload(PackedMatrix::GateUpProj, parts); }
  void set_down_proj(Parts parts) { upload(PackedMatrix::DownProj, parts); }
  // The same in BF16: rounded from float32 that the backend holds, all parts in one piece.
  void set_rounded(PackedMatrix which, const float* weights);
  // Codes times scales, rounded.
  void set_dequantised(PackedMatrix which, const Int4Rows& weights);

  // The input of qkv_proj and of gate_up_proj: x / sqrt(mean(x^2) + eps), no gain.
  [[nodiscard]] HostRows normalised(ConstActivationView x) const;
  // The same in BF16, in the backend's memory, where the next call overwrites it.
  [[nodiscard]] ConstActivationView normalise(ConstActivationView x);
  // Projections, rotary embedding and attention of one window; x is read.
  void attend(ConstActivationView x);
  // x += attention output W_o^T
  void add_attention(ActivationView x);
  // silu(gate) * up; x is read.
  void feed(ConstActivationView x);
  // x += SwiGLU output W_down^T
  void add_feed(ActivationView x);

  // Keys and values of x, in the backend's memory; BF16 alone. After attend(x).
  void project_keys_and_values(ConstActivationView x);
  [[nodiscard]] ConstActivationView key_view() const { return view(keys_, kv_width()); }
  [[nodiscard]] ConstActivationView value_view() const { return view(values_, kv_width()); }
  [[nodiscard]] ConstActivationView query_view() const { return view(queries_, q_width()); }
  [[nodiscard]] ConstActivationView attention_view() const { return view(attention_, q_width()); }
  [[nodiscard]] ConstActivationView swiglu_view() const { return view(swiglu_, swiglu_width()); }

  // What the last attend() and feed() computed, queries and keys after rotary embedding; float32
  // alone.
  [[nodiscard]] HostRows queries() const { return download(queries_, q_width()); }
  [[nodiscard]] HostRows keys() const;
  [[nodiscard]] HostRows values() const;
  [[nodiscard]] HostRows attention_output() const { return download(attention_, q_width()); }
  [[nodiscard]] HostRows swiglu_output() const { return download(swiglu_, swiglu_width()); }

 private:
  // A buffer with the sizes of what lies in it.
  struct Matrix {
    DeviceBuffer buffer;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
  };
  void upload(PackedMatrix which, Parts parts);
  [[nodiscard]] DeviceBuffer allocate_rows(std::int64_t rows, std::int64_t cols) const;
  [[nodiscard]] RaggedBatch batch() const;
  [[nodiscard]] QkvRopeAppendArgs qkv_args(ConstActivationView x) const;
  [[nodiscard]] KvPages kv_pages() const;
  void start_window(std::int64_t tokens);
  [[nodiscard]] HostRows download(const DeviceBuffer& buffer, std::int64_t cols) const;
  [[nodiscard]] HostRows cached(bool values) const;
  [[nodiscard]] ActivationView view(const DeviceBuffer& buffer, std::int64_t cols) const;
  [[nodiscard]] const Matrix& weights(PackedMatrix which) const {
    return weights_[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] DenseMatrix whole(PackedMatrix which) const {
    return part(which, 0, weights(which).rows);
  }
  [[nodiscard]] DenseMatrix part(PackedMatrix which, std::int64_t begin, std::int64_t rows) const;
  [[nodiscard]] bool is_plain() const { return type_ == DType::F32; }
  // Folded gains are one where an op asks for them.
  [[nodiscard]] const float* gain() const { return is_plain() ? ones_.as<float>() : nullptr; }
  [[nodiscard]] std::int64_t q_width() const {
    return std::int64_t{config_.num_q_heads} * config_.head_dim;
  }
  [[nodiscard]] std::int64_t kv_width() const {
    return std::int64_t{config_.num_kv_heads} * config_.head_dim;
  }
  [[nodiscard]] std::int64_t swiglu_width() const { return config_.intermediate_size; }

  Backend& backend_;
  ModelConfig config_;
  int max_tokens_;
  std::function<void()> tick_;
  DType type_;
  std::int64_t tokens_ = 0;  // of the window that runs
  layout::KvPageDense page_;
  std::array<Matrix, kNumPackedMatrices> weights_;
  DeviceBuffer queries_, attention_, swiglu_, pages_;
  DeviceBuffer normalised_, keys_, values_;  // BF16 alone
  DeviceBuffer ones_;                        // gains that are folded
  DeviceBuffer rope_cos_, rope_sin_;
  DeviceBuffer positions_, page_table_, q_indptr_, kv_indptr_, kv_lengths_;
};

}  // namespace fut
