// One layer at a time, in float32, over windows of calibration text: each op apart, with weights
// that change between them. Not the forward pass of generation: engine/forward.h.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
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
  // The embedded windows: the embedding rounded to BF16, as a packed file has it.
  HiddenStates(Backend& backend, const WeightTransforms& weights,
               const CalibrationWindows& windows);

  [[nodiscard]] std::int64_t num_windows() const { return std::ssize(begins_) - 1; }
  [[nodiscard]] MatrixView<float> window(std::int64_t index) const;

 private:
  std::vector<std::int64_t> begins_;  // first token of each window, and the number of tokens
  std::int64_t hidden_ = 0;
  DeviceBuffer data_;
};

class LayerRunner {
 public:
  // Windows have at most `max_tokens` tokens. Takes the memory of one layer in float32. `tick` is
  // called before every window's attend() and feed(): what it throws ends a run that takes long.
  LayerRunner(Backend& backend, const ModelConfig& config, int max_tokens,
              std::function<void()> tick = {});

  // Weights of the layer that runs next. Parts are one below the other, as packed_tensors.h has it.
  using Parts = std::initializer_list<const HostMatrix*>;
  void set_qkv_proj(Parts parts) { upload(qkv_proj_, parts); }
  void set_o_proj(Parts parts) { upload(o_proj_, parts); }
  void set_gate_up_proj(Parts parts) { upload(gate_up_proj_, parts); }
  void set_down_proj(Parts parts) { upload(down_proj_, parts); }

  // The input of qkv_proj and of gate_up_proj: x / sqrt(mean(x^2) + eps), no gain.
  [[nodiscard]] HostRows normalised(ConstActivationView x) const;
  // Projections, rotary embedding and attention of one window; x is read.
  void attend(ConstActivationView x);
  // x += attention output W_o^T
  void add_attention(MatrixView<float> x);
  // silu(gate) * up; x is read.
  void feed(ConstActivationView x);
  // x += SwiGLU output W_down^T
  void add_feed(MatrixView<float> x);

  // What the last attend() and feed() computed, queries and keys after rotary embedding.
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
  [[nodiscard]] Matrix allocate(std::int64_t rows, std::int64_t cols);
  void upload(const Matrix& matrix, Parts parts);
  void start_window(std::int64_t tokens);
  [[nodiscard]] HostRows download(const DeviceBuffer& buffer, std::int64_t cols) const;
  [[nodiscard]] HostRows cached(bool values) const;
  [[nodiscard]] MatrixView<float> view(const DeviceBuffer& buffer, std::int64_t cols) const;
  [[nodiscard]] DenseMatrix part(const Matrix& matrix, std::int64_t begin, std::int64_t rows) const;
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
  std::int64_t tokens_ = 0;  // of the window that runs
  layout::KvPageDense page_;
  Matrix qkv_proj_, o_proj_, gate_up_proj_, down_proj_;
  DeviceBuffer queries_, attention_, swiglu_, pages_;
  DeviceBuffer ones_;  // gains that are folded
  DeviceBuffer rope_cos_, rope_sin_;
  DeviceBuffer positions_, page_table_, q_indptr_, kv_indptr_, kv_lengths_;
};

}  // namespace fut
