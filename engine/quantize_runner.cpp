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

template <class T>
std::size_t bytes_of(std::int64_t count) {
  return static_cast<std::size_t>(count) * sizeof(T);
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
                           const CalibrationWindows& windows)
    : begins_{0} {
  for (const auto& window : windows) begins_.push_back(begins_.back() + std::ssize(window));
  for (std::size_t i = 0; i < windows.size(); ++i) {
    HostMatrix rows = weights.embedding(windows[i]);
    for (float& v : rows.values) v = bf16_to_f32(f32_to_bf16(v));
    if (i == 0) {
      hidden_ = rows.cols;
      data_ = backend.allocate(bytes_of<float>(begins_.back() * hidden_));
    }
    backend.upload(window(static_cast<std::int64_t>(i)).data,
                   std::as_bytes(std::span(rows.values)));
  }
}

MatrixView<float> HiddenStates::window(std::int64_t index) const {
  const std::int64_t begin = begins_[static_cast<std::size_t>(index)];
  const std::int64_t end = begins_[static_cast<std::size_t>(index + 1)];
  return {data_.as<float>() + begin * hidden_, end - begin, hidden_, hidden_};
}

// ---- the runner ---------------------------------------------------------------------------------

LayerRunner::LayerRunner(Backend& backend, const ModelConfig& config, int max_tokens,
                         std::function<void()> tick)
    : backend_(backend),
      config_(config),
      max_tokens_(max_tokens),
      tick_(std::move(tick)),
      page_{config.num_kv_heads, config.head_dim} {
  const std::int64_t hidden = config.hidden_size;
  qkv_proj_ = allocate(q_width() + 2 * kv_width(), hidden);
  o_proj_ = allocate(hidden, q_width());
  gate_up_proj_ = allocate(2 * swiglu_width(), hidden);
  down_proj_ = allocate(hidden, swiglu_width());
  const std::int64_t num_pages = layout::pages_for_tokens(max_tokens);
  queries_ = backend.allocate(bytes_of<float>(max_tokens * q_width()));
  attention_ = backend.allocate(bytes_of<float>(max_tokens * q_width()));
  swiglu_ = backend.allocate(bytes_of<float>(max_tokens * swiglu_width()));
  pages_ = backend.allocate(bytes_of<float>(num_pages * page_.elements()));
  ones_ = buffer_with(backend, std::vector<float>(static_cast<std::size_t>(hidden), 1.0F));
  const RopeTable rope = make_rope_table(config.rope, config.head_dim, max_tokens);
  rope_cos_ = buffer_with(backend, rope.cos);
  rope_sin_ = buffer_with(backend, rope.sin);
  positions_ = buffer_with(backend, count_up(max_tokens));
  page_table_ = buffer_with(backend, count_up(num_pages));
  q_indptr_ = backend.allocate(bytes_of<std::int32_t>(2));
  kv_indptr_ = backend.allocate(bytes_of<std::int32_t>(2));
  kv_lengths_ = backend.allocate(bytes_of<std::int32_t>(1));
}

LayerRunner::Matrix LayerRunner::allocate(std::int64_t rows, std::int64_t cols) {
  return {backend_.allocate(bytes_of<float>(rows * cols)), rows, cols};
}

void LayerRunner::upload(const Matrix& matrix, Parts parts) {
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

MatrixView<float> LayerRunner::view(const DeviceBuffer& buffer, std::int64_t cols) const {
  return {buffer.as<float>(), tokens_, cols, cols};
}

DenseMatrix LayerRunner::part(const Matrix& matrix, std::int64_t begin, std::int64_t rows) const {
  return {DType::F32, matrix.buffer.as<float>() + begin * matrix.cols, rows, matrix.cols};
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

void LayerRunner::attend(ConstActivationView x) {
  start_window(x.rows);
  RaggedBatch batch;
  batch.num_sequences = 1;
  batch.num_tokens = static_cast<int>(tokens_);
  batch.token_ids = positions_.as<std::int32_t>();  // ids have done their work
  batch.positions = positions_.as<std::int32_t>();
  batch.q_indptr = q_indptr_.as<std::int32_t>();
  batch.kv_indptr = kv_indptr_.as<std::int32_t>();
  batch.page_table = page_table_.as<std::int32_t>();
  batch.kv_lengths = kv_lengths_.as<std::int32_t>();
  const KvPages kv{pages_.as<float>(), static_cast<int>(layout::pages_for_tokens(max_tokens_)),
                   page_, DType::F32};
  QkvRopeAppendArgs qkv;
  qkv.x = x;
  qkv.gain = ones_.as<float>();
  qkv.eps = config_.rms_norm_eps;
  qkv.weights = QkvMatrices{part(qkv_proj_, 0, q_width()), part(qkv_proj_, q_width(), kv_width()),
                            part(qkv_proj_, q_width() + kv_width(), kv_width())};
  qkv.num_q_heads = config_.num_q_heads;
  qkv.num_kv_heads = config_.num_kv_heads;
  qkv.head_dim = config_.head_dim;
  qkv.rope_cos = rope_cos_.as<float>();
  qkv.rope_sin = rope_sin_.as<float>();
  qkv.rope_positions = max_tokens_;
  qkv.batch = batch;
  qkv.kv = kv;
  qkv.q_out = view(queries_, q_width());
  backend_.qkv_rope_append(qkv);
  AttentionArgs attention;
  attention.q = view(queries_, q_width());
  attention.num_q_heads = config_.num_q_heads;
  attention.num_kv_heads = config_.num_kv_heads;
  attention.head_dim = config_.head_dim;
  attention.batch = batch;
  attention.kv = kv;
  attention.out = view(attention_, q_width());
  backend_.attention(attention);
}

void LayerRunner::add_attention(MatrixView<float> x) {
  LinearResidualArgs args;
  args.x = view(attention_, q_width());
  args.weight = part(o_proj_, 0, o_proj_.rows);
  args.residual = x;
  backend_.linear_residual(args);
}

void LayerRunner::feed(ConstActivationView x) {
  start_window(x.rows);
  GateUpSwigluArgs args;
  args.x = x;
  args.gain = ones_.as<float>();
  args.eps = config_.rms_norm_eps;
  args.weights = GateUpMatrices{part(gate_up_proj_, 0, swiglu_width()),
                                part(gate_up_proj_, swiglu_width(), swiglu_width())};
  args.out = view(swiglu_, swiglu_width());
  backend_.gate_up_swiglu(args);
}

void LayerRunner::add_feed(MatrixView<float> x) {
  LinearResidualArgs args;
  args.x = view(swiglu_, swiglu_width());
  args.weight = part(down_proj_, 0, down_proj_.rows);
  args.residual = x;
  backend_.linear_residual(args);
}

HostRows LayerRunner::download(const DeviceBuffer& buffer, std::int64_t cols) const {
  HostRows out{tokens_, cols, std::vector<float>(static_cast<std::size_t>(tokens_ * cols))};
  backend_.download(std::as_writable_bytes(std::span(out.values)), buffer.as<float>());
  return out;
}

HostRows LayerRunner::cached(bool values) const {
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
