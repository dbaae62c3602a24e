// Every window is a step of one sequence over a cache that holds nothing else.
#include "engine/quantize_runner.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/upload.h"
#include "kernels/numeric/formats.h"
#include "kernels/numeric/rope_table.h"

namespace fut {
namespace {

std::size_t bytes_of(DType type, std::int64_t count) {
  return static_cast<std::size_t>(count) * static_cast<std::size_t>(dtype_bytes(type));
}

template <class T>
DeviceBuffer buffer_with(Backend& backend, const std::vector<T>& values) {
  DeviceBuffer buffer = backend.allocate(values.size() * sizeof(T));
  upload_values(backend, buffer, values);
  return buffer;
}

std::vector<std::int32_t> count_up(std::int64_t count) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

}  // namespace

// ---- hidden states ------------------------------------------------------------------------------

HiddenStates::HiddenStates(Backend& backend, const WeightTransforms& weights,
                           const CalibrationWindows& windows, DType type)
    : backend_(&backend), begins_{0}, type_(type) {
  for (const auto& window : windows) begins_.push_back(begins_.back() + std::ssize(window));
  for (std::size_t i = 0; i < windows.size(); ++i) {
    HostMatrix rows = weights.embedding(windows[i]);
    if (i == 0) {
      hidden_ = rows.cols;
      data_ = backend.allocate(bytes_of(type, begins_.back() * hidden_));
    }
    void* place = window(static_cast<std::int64_t>(i)).data;
    std::vector<std::uint16_t> rounded(rows.values.size());
    std::ranges::transform(rows.values, rounded.begin(), f32_to_bf16);
    if (type == DType::BF16) {
      backend.upload(place, std::as_bytes(std::span(rounded)));
      continue;
    }
    std::ranges::transform(rounded, rows.values.begin(), bf16_to_f32);
    backend.upload(place, std::as_bytes(std::span(rows.values)));
  }
}

ActivationView HiddenStates::window(std::int64_t index) const {
  const std::int64_t begin = begins_[static_cast<std::size_t>(index)];
  const std::int64_t end = begins_[static_cast<std::size_t>(index + 1)];
  return {data_.as<std::byte>() + bytes_of(type_, begin * hidden_), type_, end - begin, hidden_,
          hidden_};
}

std::vector<std::byte> HiddenStates::save() const {
  std::vector<std::byte> bytes(data_.bytes());
  if (!bytes.empty()) backend_->download(bytes, data_.as<void>());
  return bytes;
}

void HiddenStates::restore(std::span<const std::byte> bytes) {
  FUT_CHECK(bytes.size() == data_.bytes(), "{} bytes of hidden states for {}", bytes.size(),
            data_.bytes());
  if (!bytes.empty()) backend_->upload(data_.as<void>(), bytes);
}

// ---- the runner ---------------------------------------------------------------------------------

LayerRunner::LayerRunner(Backend& backend, const ModelConfig& config, int max_tokens,
                         std::function<void()> tick, DType type)
    : backend_(backend),
      config_(config),
      max_tokens_(max_tokens),
      tick_(std::move(tick)),
      type_(type),
      page_{config.num_kv_heads, config.head_dim} {
  const std::int64_t hidden = config.hidden_size;
  for (int m = 0; m < kNumPackedMatrices; ++m) {
    const PackedMatrixShape shape = packed_matrix_shape(config, static_cast<PackedMatrix>(m));
    weights_[static_cast<std::size_t>(m)] = {allocate_rows(shape.rows, shape.cols), shape.rows,
                                             shape.cols};
  }
  const std::int64_t num_pages = layout::pages_for_tokens(max_tokens);
  queries_ = allocate_rows(max_tokens, q_width());
  attention_ = allocate_rows(max_tokens, q_width());
  swiglu_ = allocate_rows(max_tokens, swiglu_width());
  pages_ = allocate_rows(num_pages, page_.elements());
  if (!is_plain()) {
    normalised_ = allocate_rows(max_tokens, hidden);
    keys_ = allocate_rows(max_tokens, kv_width());
    values_ = allocate_rows(max_tokens, kv_width());
  }
  ones_ = buffer_with(backend, std::vector<float>(static_cast<std::size_t>(hidden), 1.0F));
  const RopeTable rope = make_rope_table(config.rope, config.head_dim, max_tokens);
  rope_cos_ = buffer_with(backend, rope.cos);
  rope_sin_ = buffer_with(backend, rope.sin);
  positions_ = buffer_with(backend, count_up(max_tokens));
  page_table_ = buffer_with(backend, count_up(num_pages));
  q_indptr_ = backend.allocate(2 * sizeof(std::int32_t));
  kv_indptr_ = backend.allocate(2 * sizeof(std::int32_t));
  kv_lengths_ = backend.allocate(sizeof(std::int32_t));
}

DeviceBuffer LayerRunner::allocate_rows(std::int64_t rows, std::int64_t cols) const {
  return backend_.allocate(bytes_of(type_, rows * cols));
}

void LayerRunner::upload(PackedMatrix which, Parts parts) {
  FUT_CHECK(is_plain(), "float32 for weights of {}", dtype_name(type_));
  const Matrix& matrix = weights(which);
  std::int64_t rows = 0;
  for (const HostMatrix* w : parts) {
    FUT_CHECK(w->cols == matrix.cols && rows + w->rows <= matrix.rows,
              "{}: {} x {} after {} rows of {} x {}", w->name, w->rows, w->cols, rows, matrix.rows,
              matrix.cols);
    backend_.upload(matrix.buffer.as<float>() + rows * matrix.cols,
                    std::as_bytes(std::span(w->values)));
    rows += w->rows;
  }
  FUT_CHECK(rows == matrix.rows, "{} rows of {}", rows, matrix.rows);
}

void LayerRunner::set_rounded(PackedMatrix which, const float* values) {
  FUT_CHECK(!is_plain(), "BF16 for weights of {}", dtype_name(type_));
  const Matrix& matrix = weights(which);
  backend_.offline_ops()->round_to_bf16(
      {values, matrix.buffer.as<std::uint16_t>(), matrix.rows * matrix.cols});
}

void LayerRunner::set_dequantised(PackedMatrix which, const Int4Rows& q) {
  const Matrix& matrix = weights(which);
  FUT_CHECK(!is_plain() && q.rows == matrix.rows && q.cols == matrix.cols,
            "{} x {} for {} x {} in {}", q.rows, q.cols, matrix.rows, matrix.cols,
            dtype_name(type_));
  backend_.offline_ops()->gptq().dequantise({q, matrix.buffer.as<std::uint16_t>()});
}

void LayerRunner::start_window(std::int64_t tokens) {
  FUT_CHECK(tokens >= 1 && tokens <= max_tokens_, "a window of {} tokens, room for {}", tokens,
            max_tokens_);
  if (tick_) tick_();
  if (tokens == tokens_) return;
  tokens_ = tokens;
  const auto length = static_cast<std::int32_t>(tokens);
  const auto num_pages = static_cast<std::int32_t>(layout::pages_for_tokens(tokens));
  upload_values(backend_, q_indptr_, std::vector<std::int32_t>{0, length});
  upload_values(backend_, kv_indptr_, std::vector<std::int32_t>{0, num_pages});
  upload_values(backend_, kv_lengths_, std::vector<std::int32_t>{length});
}

ActivationView LayerRunner::view(const DeviceBuffer& buffer, std::int64_t cols) const {
  return {buffer.as<void>(), type_, tokens_, cols, cols};
}

DenseMatrix LayerRunner::part(PackedMatrix which, std::int64_t begin, std::int64_t rows) const {
  const Matrix& matrix = weights(which);
  return {type_, matrix.buffer.as<std::byte>() + bytes_of(type_, begin * matrix.cols), rows,
          matrix.cols};
}

HostRows LayerRunner::normalised(ConstActivationView x) const {
  HostRows out{x.rows, x.cols, std::vector<float>(static_cast<std::size_t>(x.rows * x.cols))};
  backend_.download(std::as_writable_bytes(std::span(out.values)), x.data);
  for (std::int64_t t = 0; t < out.rows; ++t) {
    float* row = out.values.data() + t * out.cols;
    const double squares = std::accumulate(row, row + out.cols, 0.0, [](double sum, float v) {
      return sum + static_cast<double>(v) * v;
    });
    const double mean = squares / static_cast<double>(out.cols);
    const auto scale = static_cast<float>(1.0 / std::sqrt(mean + config_.rms_norm_eps));
    for (std::int64_t c = 0; c < out.cols; ++c) row[c] *= scale;
  }
  return out;
}

ConstActivationView LayerRunner::normalise(ConstActivationView x) {
  start_window(x.rows);
  const ActivationView out = view(normalised_, x.cols);
  backend_.offline_ops()->normalise({x, config_.rms_norm_eps, out});
  return out;
}

RaggedBatch LayerRunner::batch() const {
  RaggedBatch batch;
  batch.num_sequences = 1;
  batch.num_tokens = static_cast<int>(tokens_);
  batch.token_ids = positions_.as<std::int32_t>();  // ids have done their work
  batch.positions = positions_.as<std::int32_t>();
  batch.q_indptr = q_indptr_.as<std::int32_t>();
  batch.kv_indptr = kv_indptr_.as<std::int32_t>();
  batch.page_table = page_table_.as<std::int32_t>();
  batch.kv_lengths = kv_lengths_.as<std::int32_t>();
  return batch;
}

KvPages LayerRunner::kv_pages() const {
  return {pages_.as<void>(), static_cast<int>(layout::pages_for_tokens(max_tokens_)), page_, type_};
}

// Without a place for keys and values.
QkvRopeAppendArgs LayerRunner::qkv_args(ConstActivationView x) const {
  QkvRopeAppendArgs qkv;
  qkv.x = x;
  qkv.gain = gain();
  qkv.eps = config_.rms_norm_eps;
  constexpr PackedMatrix kQkv = PackedMatrix::QkvProj;
  if (is_plain()) {
    qkv.weights = QkvMatrices{part(kQkv, 0, q_width()), part(kQkv, q_width(), kv_width()),
                              part(kQkv, q_width() + kv_width(), kv_width())};
  } else {
    qkv.weights = Weights(whole(kQkv));
  }
  qkv.num_q_heads = config_.num_q_heads;
  qkv.num_kv_heads = config_.num_kv_heads;
  qkv.head_dim = config_.head_dim;
  qkv.rope_cos = rope_cos_.as<float>();
  qkv.rope_sin = rope_sin_.as<float>();
  qkv.rope_positions = max_tokens_;
  qkv.batch = batch();
  qkv.q_out = view(queries_, q_width());
  return qkv;
}

void LayerRunner::attend(ConstActivationView x) {
  start_window(x.rows);
  QkvRopeAppendArgs qkv = qkv_args(x);
  qkv.kv = kv_pages();
  backend_.qkv_rope_append(qkv);
  AttentionArgs attention;
  attention.q = view(queries_, q_width());
  attention.num_q_heads = config_.num_q_heads;
  attention.num_kv_heads = config_.num_kv_heads;
  attention.head_dim = config_.head_dim;
  attention.batch = batch();
  attention.kv = kv_pages();
  attention.out = view(attention_, q_width());
  backend_.attention(attention);
}

void LayerRunner::project_keys_and_values(ConstActivationView x) {
  FUT_CHECK(!is_plain() && x.rows == tokens_, "{} tokens of {}, {} attended", x.rows,
            dtype_name(type_), tokens_);
  QkvRopeAppendArgs qkv = qkv_args(x);
  qkv.k_out = view(keys_, kv_width());
  qkv.v_out = view(values_, kv_width());
  backend_.qkv_rope_append(qkv);
}

void LayerRunner::add_attention(ActivationView x) {
  LinearResidualArgs args;
  args.x = view(attention_, q_width());
  args.weight = whole(PackedMatrix::OProj);
  args.residual = x;
  backend_.linear_residual(args);
}

void LayerRunner::feed(ConstActivationView x) {
  start_window(x.rows);
  GateUpSwigluArgs args;
  args.x = x;
  args.gain = gain();
  args.eps = config_.rms_norm_eps;
  constexpr PackedMatrix kGateUp = PackedMatrix::GateUpProj;
  if (is_plain()) {
    args.weights = GateUpMatrices{part(kGateUp, 0, swiglu_width()),
                                  part(kGateUp, swiglu_width(), swiglu_width())};
  } else {
    args.weights = Weights(whole(kGateUp));
  }
  args.out = view(swiglu_, swiglu_width());
  backend_.gate_up_swiglu(args);
}

void LayerRunner::add_feed(ActivationView x) {
  LinearResidualArgs args;
  args.x = view(swiglu_, swiglu_width());
  args.weight = whole(PackedMatrix::DownProj);
  args.residual = x;
  backend_.linear_residual(args);
}

HostRows LayerRunner::download(const DeviceBuffer& buffer, std::int64_t cols) const {
  FUT_CHECK(is_plain(), "float32 of activations in {}", dtype_name(type_));
  HostRows out{tokens_, cols, std::vector<float>(static_cast<std::size_t>(tokens_ * cols))};
  backend_.download(std::as_writable_bytes(std::span(out.values)), buffer.as<float>());
  return out;
}

HostRows LayerRunner::cached(bool values) const {
  FUT_CHECK(is_plain(), "float32 of a cache in {}", dtype_name(type_));
  const std::int64_t num_pages = layout::pages_for_tokens(tokens_);
  std::vector<float> pages(static_cast<std::size_t>(num_pages * page_.elements()));
  backend_.download(std::as_writable_bytes(std::span(pages)), pages_.as<float>());
  HostRows out{tokens_, kv_width(),
               std::vector<float>(static_cast<std::size_t>(tokens_ * kv_width()))};
  for (std::int64_t t = 0; t < tokens_; ++t) {
    const float* page = pages.data() + t / layout::kPageTokens * page_.elements();
    const int slot = static_cast<int>(t % layout::kPageTokens);
    for (int head = 0; head < config_.num_kv_heads; ++head) {
      const std::int64_t offset = values ? page_.v_offset(head, slot) : page_.k_offset(head, slot);
      std::copy_n(page + offset, config_.head_dim,
                  out.values.data() + t * out.cols + std::int64_t{head} * config_.head_dim);
    }
  }
  return out;
}

HostRows LayerRunner::keys() const {
  return cached(false);
}

HostRows LayerRunner::values() const {
  return cached(true);
}

}  // namespace fut
