// A model of random weights in one of the four precisions and the ops of one step of it, each timed
// beside its cost from op_cost.h. Not a model that computes anything sensible: no engine, no files.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/formats.h"
#include "kernels/op_cost.h"

namespace fut {

struct ModelShape {
  const char* name;
  int hidden, layers, num_q_heads, num_kv_heads, head_dim, ffn, vocab;

  [[nodiscard]] std::int64_t q_cols() const { return std::int64_t{num_q_heads} * head_dim; }
  [[nodiscard]] std::int64_t kv_cols() const { return std::int64_t{num_kv_heads} * head_dim; }
};

// Plain: BF16 weights as stored, float32 everywhere. Int4: as decode computes, INT4 cache and all.
enum class Arithmetic { Plain, Bf16, Fp8, Int4 };
inline constexpr std::array<const char*, 4> kArithmeticNames = {"f32", "bf16", "fp8", "int4"};

enum class Op { Embed, Qkv, Attention, OutProj, GateUp, Down, LmHead, Sample };
inline constexpr int kNumOps = 8;
inline constexpr std::array<const char*, kNumOps> kOpNames = {
    "embed",          "qkv_rope_append",
    "attention",      "linear_residual(o_proj)",
    "gate_up_swiglu", "linear_residual(down_proj)",
    "lm_head",        "sample"};

// What one op did in one step: calls, time, and its cost from op_cost.h.
struct OpTotal {
  int calls = 0;
  double seconds = 0;
  OpCost cost;
};
using OpTotals = std::array<OpTotal, kNumOps>;

// `sequences` of `length` tokens each, of which the last `tokens` are run.
struct StepShape {
  int sequences = 1, tokens = 1, length = 1;
};

class BenchStep {
 public:
  BenchStep(const ModelShape& model, Arithmetic arithmetic, const StepShape& step, int num_threads)
      : model_(model),
        arithmetic_(arithmetic),
        step_(step),
        num_tokens_(step.sequences * step.tokens),
        backend_(num_threads) {
    make_weights();
    make_batch();
    make_activations();
    params_.assign(static_cast<std::size_t>(step.sequences), {});
    for (SampleParams& p : params_) {
      p.temperature = 0.8F;
      p.top_k = 40;
      p.top_p = 0.95F;
    }
  }

  // The whole step; adds up what each op did.
  void run(OpTotals& totals) {
    call(totals, Op::Embed, EmbedArgs{token_ids_.data(), num_tokens_, embedding_, x_});
    for (const Layer& layer : layers_) run_layer(layer, totals);
    LmHeadArgs head;
    head.x = x_;
    head.rows = logit_rows_.data();
    head.num_rows = step_.sequences;
    head.gain = gain();
    head.eps = kEps;
    head.weight = head_;
    head.out = logits_;
    call(totals, Op::LmHead, head);
    call(totals, Op::Sample,
         SampleArgs{{logits_.data, logits_.rows, logits_.cols, logits_.row_stride},
                    params_.data(),
                    draws_.data(),
                    nullptr,
                    history_indptr_.data(),
                    history_indptr_.data() + 1,
                    next_ids_.data()});
  }

  [[nodiscard]] std::string description() const { return backend_.description(); }
  [[nodiscard]] int num_tokens() const { return num_tokens_; }

 private:
  static constexpr float kEps = 1e-5F;
  static constexpr float kWeightSize = 0.05F;

  struct Layer {
    QkvWeights qkv;
    Weights o;
    GateUpWeights gate_up;
    Weights down;
    KvCacheView kv;
  };

  [[nodiscard]] bool is_int4() const { return arithmetic_ == Arithmetic::Int4; }
  [[nodiscard]] const float* gain() const {
    return arithmetic_ == Arithmetic::Plain ? gain_ : nullptr;
  }
  // Residual and queries; operands of o_proj and down_proj.
  [[nodiscard]] DType wide() const {
    return arithmetic_ == Arithmetic::Plain || is_int4() ? DType::F32 : DType::BF16;
  }
  [[nodiscard]] DType operand() const {
    constexpr std::array kOperands = {DType::F32, DType::BF16, DType::E4M3, DType::F16};
    return kOperands[static_cast<std::size_t>(arithmetic_)];
  }

  // Zeros.
  template <class T>
  T* take(std::int64_t count) {
    buffers_.push_back(backend_.allocate(static_cast<std::size_t>(count) * sizeof(T)));
    auto* data = buffers_.back().as<T>();
    std::fill_n(data, count, T{});
    return data;
  }

  float* floats(std::int64_t count, float size) {
    auto* data = take<float>(count);
    std::uniform_real_distribution<float> values(-size, size);
    for (std::int64_t i = 0; i < count; ++i) data[i] = values(random_);
    return data;
  }

  DenseMatrix bf16(std::int64_t rows, std::int64_t cols) {
    auto* data = take<std::uint16_t>(rows * cols);
    std::uniform_real_distribution<float> values(-kWeightSize, kWeightSize);
    for (std::int64_t i = 0; i < rows * cols; ++i) data[i] = f32_to_bf16(values(random_));
    return {DType::BF16, data, rows, cols};
  }

  E4m3Matrix e4m3(std::int64_t rows, std::int64_t cols) {
    auto* data = take<std::uint8_t>(rows * cols);
    std::uniform_real_distribution<float> values(-kE4m3Max, kE4m3Max);
    for (std::int64_t i = 0; i < rows * cols; ++i) data[i] = f32_to_e4m3(values(random_));
    return {data, floats(rows, kWeightSize / kE4m3Max), rows, cols};
  }

  Int8Matrix int8(std::int64_t rows, std::int64_t cols) {
    auto* data = take<std::int8_t>(rows * cols);
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      data[i] = static_cast<std::int8_t>(static_cast<int>(random_() % 255) - 127);
    }
    return {data, floats(rows, kWeightSize / 127), rows, cols};
  }

  Int4Matrix int4(const layout::RowOrder& order, std::int64_t cols) {
    const layout::Int4Tile tile = {order.packed_rows(), static_cast<int>(cols)};
    auto* data = take<std::uint8_t>(tile.bytes());
    for (std::int64_t i = 0; i < tile.bytes(); ++i) data[i] = static_cast<std::uint8_t>(random_());
    const std::uint16_t scale = f32_to_bf16(kWeightSize / 8);
    for (int row = 0; row < 16 * tile.num_strips(); ++row) {
      for (int g = 0; g < tile.num_groups(); ++g) {
        std::memcpy(data + tile.scale_offset(row, g), &scale, sizeof(scale));
      }
    }
    return {data, tile, order, order.source_rows, cols};
  }

  Weights matrix(const layout::RowOrder& order, std::int64_t cols) {
    if (is_int4()) return int4(order, cols);
    if (arithmetic_ == Arithmetic::Fp8) return e4m3(order.source_rows, cols);
    return bf16(order.source_rows, cols);
  }

  KvCacheView make_cache() {
    const auto pages = static_cast<int>(step_.sequences * layout::pages_for_tokens(step_.length));
    if (is_int4()) {
      const layout::KvPageInt4 page = {model_.num_kv_heads, model_.head_dim, model_.head_dim};
      const layout::KvRawStore raw = {model_.num_kv_heads, model_.head_dim};
      return KvPagesInt4{take<std::uint8_t>(pages * page.bytes()),
                         pages,
                         page,
                         take<std::uint16_t>(step_.sequences * raw.elements()),
                         step_.sequences,
                         raw};
    }
    const layout::KvPageDense page = {model_.num_kv_heads, model_.head_dim};
    return KvPages{take<std::byte>(pages * page.elements() * dtype_bytes(wide())), pages, page,
                   wide()};
  }

  void make_weights() {
    using layout::RowOrder;
    embedding_ = bf16(model_.vocab, model_.hidden);
    head_ = embedding_;
    if (arithmetic_ == Arithmetic::Fp8 || is_int4()) head_ = int8(model_.vocab, model_.hidden);
    gain_ = floats(model_.hidden, 1);
    rope_ = floats(std::int64_t{step_.length} * model_.head_dim / 2, 1);
    for (int i = 0; i < model_.layers; ++i) {
      layers_.push_back(
          {matrix(RowOrder::qkv(model_.num_q_heads, model_.num_kv_heads, model_.head_dim),
                  model_.hidden),
           matrix(RowOrder::natural(model_.hidden), model_.q_cols()),
           matrix(RowOrder::gate_up(model_.ffn), model_.hidden),
           matrix(RowOrder::natural(model_.hidden), model_.ffn), make_cache()});
    }
  }

  void make_batch() {
    const auto pages = static_cast<std::int32_t>(layout::pages_for_tokens(step_.length));
    for (int s = 0; s < step_.sequences; ++s) {
      q_indptr_.push_back(s * step_.tokens);
      kv_indptr_.push_back(s * pages);
      kv_lengths_.push_back(step_.length);
      raw_slots_.push_back(s);
      logit_rows_.push_back((s + 1) * step_.tokens - 1);
      for (int i = 0; i < step_.tokens; ++i) {
        token_ids_.push_back(i % model_.vocab);
        positions_.push_back(step_.length - step_.tokens + i);
      }
      for (std::int32_t i = 0; i < pages; ++i) page_table_.push_back(s * pages + i);
    }
    q_indptr_.push_back(num_tokens_);
    kv_indptr_.push_back(step_.sequences * pages);
    batch_ = {step_.sequences,    num_tokens_,        token_ids_.data(),
              positions_.data(),  q_indptr_.data(),   kv_indptr_.data(),
              page_table_.data(), kv_lengths_.data(), raw_slots_.data()};
  }

  ActivationView activation(DType dtype, std::int64_t cols) {
    return {take<std::byte>(num_tokens_ * cols * dtype_bytes(dtype)), dtype, num_tokens_, cols,
            cols};
  }

  void make_activations() {
    x_ = activation(wide(), model_.hidden);
    q_ = activation(wide(), model_.q_cols());
    k_ = activation(wide(), model_.kv_cols());
    v_ = activation(wide(), model_.kv_cols());
    attended_ = activation(operand(), model_.q_cols());
    ffn_ = activation(operand(), model_.ffn);
    exponents_ = take<std::int32_t>(num_tokens_);
    out_scales_ = take<float>(model_.num_kv_heads);
    std::fill_n(out_scales_, model_.num_kv_heads, 1.0F);
    const std::int64_t rows = step_.sequences;
    logits_ = {take<float>(rows * model_.vocab), rows, model_.vocab, model_.vocab};
    draws_.assign(static_cast<std::size_t>(rows), 0);
    next_ids_.assign(static_cast<std::size_t>(rows), 0);
    history_indptr_.assign(static_cast<std::size_t>(rows) + 1, 0);
  }

  void run_layer(const Layer& layer, OpTotals& totals) {
    call(totals, Op::Qkv, qkv_args(layer));
    AttentionArgs attention;
    attention.q = q_;
    if (is_int4()) {
      attention.k = k_;
      attention.v = v_;
      attention.rotation_block = model_.head_dim;
    }
    attention.num_q_heads = model_.num_q_heads;
    attention.num_kv_heads = model_.num_kv_heads;
    attention.head_dim = model_.head_dim;
    attention.batch = batch_;
    attention.kv = layer.kv;
    if (operand() == DType::E4M3) attention.out_scales = out_scales_;
    attention.out = attended_;
    call(totals, Op::Attention, attention);

    LinearResidualArgs o;
    o.x = attended_;
    o.weight = layer.o;
    o.residual = x_;
    call(totals, Op::OutProj, o);

    GateUpSwigluArgs gate_up;
    gate_up.x = x_;
    gate_up.gain = gain();
    gate_up.eps = kEps;
    gate_up.weights = layer.gate_up;
    if (is_int4()) gate_up.out_exponents = exponents_;
    gate_up.out = ffn_;
    call(totals, Op::GateUp, gate_up);

    LinearResidualArgs down;
    down.x = ffn_;
    if (is_int4()) down.x_exponents = exponents_;
    down.weight = layer.down;
    down.residual = x_;
    call(totals, Op::Down, down);
  }

  [[nodiscard]] QkvRopeAppendArgs qkv_args(const Layer& layer) const {
    QkvRopeAppendArgs a;
    a.x = x_;
    a.gain = gain();
    a.eps = kEps;
    a.weights = layer.qkv;
    a.num_q_heads = model_.num_q_heads;
    a.num_kv_heads = model_.num_kv_heads;
    a.head_dim = model_.head_dim;
    a.rope_cos = rope_;
    a.rope_sin = rope_;
    a.rope_positions = step_.length;
    a.batch = batch_;
    a.q_out = q_;
    if (is_int4()) {
      a.k_out = k_;
      a.v_out = v_;
    } else {
      a.kv = std::get<KvPages>(layer.kv);
    }
    return a;
  }

  void execute(const EmbedArgs& a) { backend_.embed(a); }
  void execute(const QkvRopeAppendArgs& a) { backend_.qkv_rope_append(a); }
  void execute(const AttentionArgs& a) { backend_.attention(a); }
  void execute(const LinearResidualArgs& a) { backend_.linear_residual(a); }
  void execute(const GateUpSwigluArgs& a) { backend_.gate_up_swiglu(a); }
  void execute(const LmHeadArgs& a) { backend_.lm_head(a); }
  void execute(const SampleArgs& a) { backend_.sample(a); }

  template <class Args>
  void call(OpTotals& totals, Op op, const Args& args) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    execute(args);
    OpTotal& total = totals[static_cast<std::size_t>(op)];
    total.seconds += std::chrono::duration<double>(Clock::now() - start).count();
    const OpCost once = cost(args);
    total.cost.bytes += once.bytes;
    total.cost.flops += once.flops;
    ++total.calls;
  }

  ModelShape model_;
  Arithmetic arithmetic_;
  StepShape step_;
  int num_tokens_;
  cpu::CpuBackend backend_;
  std::mt19937 random_{1};
  std::vector<DeviceBuffer> buffers_;
  std::vector<Layer> layers_;
  DenseMatrix embedding_;
  Weights head_;
  float* gain_ = nullptr;
  float* rope_ = nullptr;
  float* out_scales_ = nullptr;
  std::int32_t* exponents_ = nullptr;
  ActivationView x_, q_, k_, v_, attended_, ffn_;
  MatrixView<float> logits_;
  RaggedBatch batch_;
  std::vector<std::int32_t> token_ids_, positions_, page_table_, q_indptr_, kv_indptr_, kv_lengths_,
      raw_slots_, logit_rows_, history_indptr_, next_ids_;
  std::vector<SampleParams> params_;
  std::vector<std::uint64_t> draws_;
};

}  // namespace fut
