// Three square matrices stay, H, its factor and G; slabs come and go through two buffers.
#include "engine/gptq_on_device.h"

#include <algorithm>
#include <limits>

#include "engine/quantize_gptq.h"
#include "engine/upload.h"
#include "loader/int4_grid.h"
#include "loader/packed_tensors.h"

namespace fut {
namespace {

constexpr std::int64_t kFewestSlabRows = 512;
constexpr std::int64_t kSlabWeights = std::int64_t{1} << 23;
constexpr std::uint64_t kNoneBad = std::numeric_limits<std::uint64_t>::max();
constexpr int kSmallestGroup = 64;

// What each buffer takes, in the order of the members.
struct BufferBytes {
  std::uint64_t square, of_columns, of_slab, negated, of_rows, weights;

  explicit BufferBytes(const MatrixLimits& limits) {
    const auto size = [](std::int64_t count, std::size_t each) {
      return static_cast<std::uint64_t>(count) * each;
    };
    // Slabs of narrow matrices have more rows and no more weights.
    const std::int64_t slab = std::max(kSlabWeights, kFewestSlabRows * limits.cols);
    const std::int64_t rows = std::min(limits.rows, kSlabWeights / kGptqBlockColumns);
    square = size(limits.cols * limits.cols, sizeof(double));
    of_columns = size(limits.cols, sizeof(double));
    weights = static_cast<std::uint64_t>(std::min(slab, limits.rows * limits.cols));
    of_slab = weights * sizeof(double);
    negated = size(rows * kGptqBlockColumns, sizeof(double));
    of_rows = size(rows, sizeof(double));
  }
};

}  // namespace

MatrixLimits matrix_limits(const ModelConfig& config) {
  MatrixLimits limits;
  for (int m = 0; m < kNumPackedMatrices; ++m) {
    const PackedMatrixShape shape = packed_matrix_shape(config, static_cast<PackedMatrix>(m));
    limits.rows = std::max<std::int64_t>(limits.rows, shape.rows);
    limits.cols = std::max<std::int64_t>(limits.cols, shape.cols);
  }
  return limits;
}

std::int64_t gptq_slab_rows(std::int64_t cols) {
  constexpr std::int64_t kTile = 128;    // of rows, in products: no slab ends within one
  constexpr std::int64_t kMost = 65408;  // that a launch takes
  return std::min(kMost, std::max(kFewestSlabRows, kSlabWeights / cols / kTile * kTile));
}

std::uint64_t GptqOnDevice::bytes(const MatrixLimits& limits) {
  const BufferBytes b(limits);
  return 3 * b.square + 2 * b.of_columns + 2 * b.of_slab + b.negated + 5 * b.weights +
         b.weights / kSmallestGroup * sizeof(std::uint16_t) + 3 * b.of_rows +
         sizeof(std::uint64_t) + sizeof(std::int32_t);
}

GptqOnDevice::GptqOnDevice(Backend& backend, const MatrixLimits& limits, const GptqOptions& options,
                           std::function<void()> tick)
    : backend_(backend),
      ops_(backend.offline_ops()->gptq()),
      options_(options),
      tick_(std::move(tick)) {
  const BufferBytes bytes(limits);
  for (DeviceBuffer* buffer : {&h_, &g_, &upper_}) *buffer = backend.allocate(bytes.square);
  diagonal_ = backend.allocate(bytes.of_columns);
  importance_ = backend.allocate(bytes.of_columns / 2);
  order_ = backend.allocate(bytes.of_columns / 2);
  for (DeviceBuffer* buffer : {&left_, &right_}) *buffer = backend.allocate(bytes.of_slab);
  negated_ = backend.allocate(bytes.negated);
  target_ = backend.allocate(bytes.weights * sizeof(float));
  codes_ = backend.allocate(bytes.weights);
  scales_ = backend.allocate(bytes.weights / kSmallestGroup * sizeof(std::uint16_t));
  for (DeviceBuffer* buffer : {&energies_, &rounded_losses_, &losses_}) {
    *buffer = backend.allocate(bytes.of_rows);
  }
  first_bad_ = backend.allocate(sizeof(std::uint64_t));
  failed_ = backend.allocate(sizeof(std::int32_t));
}

// ---- moments ------------------------------------------------------------------------------------

void GptqOnDevice::begin(std::int64_t cols) {
  cols_ = cols;
  has_sums_ = false;
}

void GptqOnDevice::add(ConstActivationView x, ConstActivationView original) {
  FUT_CHECK(x.cols == cols_, "{} columns of {}", x.cols, cols_);
  ops_.add_token_products({x, x, has_sums_, h_.as<double>(), upper_.as<float>()});
  if (options_.upstream_share > 0) {
    ops_.add_token_products({original, x, has_sums_, g_.as<double>(), upper_.as<float>()});
  }
  has_sums_ = true;
}

std::vector<double> GptqOnDevice::numbers(const DeviceBuffer& buffer, std::int64_t count) const {
  std::vector<double> values(static_cast<std::size_t>(count));
  backend_.download(std::as_writable_bytes(std::span(values)), buffer.as<void>());
  return values;
}

// ---- the factor ---------------------------------------------------------------------------------

GptqFactor GptqOnDevice::factor(const std::string& name) {
  upload_values(backend_, first_bad_, std::vector<std::uint64_t>{kNoneBad});
  ops_.finish_moments({cols_, h_.as<double>(),
                       options_.upstream_share > 0 ? g_.as<double>() : nullptr,
                       diagonal_.as<double>(), first_bad_.as<std::uint64_t>()});
  std::uint64_t first_bad = 0;
  backend_.download(std::as_writable_bytes(std::span(&first_bad, 1)), first_bad_.as<void>());
  if (first_bad != kNoneBad) {
    double value = 0;
    backend_.download(std::as_writable_bytes(std::span(&value, 1)), h_.as<double>() + first_bad);
    const auto index = static_cast<std::int64_t>(first_bad);
    throw_bad_hessian(name, index / cols_, index % cols_, value);
  }
  const std::vector<double> diagonal = numbers(diagonal_, cols_);
  GptqFactor factor = start_factor(name, diagonal, options_);
  upload_values(backend_, importance_, column_importance(diagonal));
  upload_values(backend_, order_,
                std::vector<std::int32_t>(factor.order.begin(), factor.order.end()));
  do {
    ridge_ = factor.damping * mean_of(diagonal);
    ops_.inverse_factor({cols_, h_.as<double>(), order_.as<std::int32_t>(), ridge_,
                         upper_.as<double>(), failed_.as<std::int32_t>()});
    std::int32_t failed = 0;
    backend_.download(std::as_writable_bytes(std::span(&failed, 1)), failed_.as<void>());
    if (failed == 0) break;
  } while (raise_damping(factor));
  return factor;
}

// ---- a slab -------------------------------------------------------------------------------------

void GptqOnDevice::multiply(const double* rows, const double* square, double* out,
                            std::int64_t count, bool transposed) {
  ops_.add_product({{out, count, cols_, cols_},
                    {rows, count, cols_, cols_},
                    {square, cols_, cols_, cols_},
                    transposed,
                    false});
}

// What the slab's codes are to come near to.
void GptqOnDevice::aim(const float* w, std::int64_t rows) {
  const bool corrects = factor_.usable && options_.upstream_share > 0;
  auto* left = left_.as<double>();
  auto* right = right_.as<double>();
  const auto* order = order_.as<std::int32_t>();
  if (corrects) {
    ops_.gather_columns({rows, cols_, w, nullptr, nullptr, left});
    multiply(left, g_.as<double>(), right, rows);
    ops_.gather_columns({rows, cols_, nullptr, right, order, left});
    multiply(left, upper_.as<double>(), right, rows, true);  // H^-1 = U^T U
    multiply(right, upper_.as<double>(), left, rows);
  }
  ops_.correct_rows({rows, cols_, w, corrects ? left : nullptr, options_.upstream_share, order,
                     diagonal_.as<double>(), target_.as<float>()});
}

void GptqOnDevice::measure(const Int4Rows& q, const DeviceBuffer& losses) {
  ops_.residuals({q, target_.as<float>(), left_.as<double>()});
  multiply(left_.as<double>(), h_.as<double>(), right_.as<double>(), q.rows);
  ops_.row_dots({q.rows, cols_, left_.as<double>(), right_.as<double>(), losses.as<double>()});
}

void GptqOnDevice::sweep(const Int4Rows& q) {
  auto* weights = left_.as<double>();
  const MatrixView<const double> upper = square(upper_);
  ops_.gather_columns(
      {q.rows, cols_, target_.as<float>(), nullptr, order_.as<std::int32_t>(), weights});
  for (std::int64_t begin = 0; begin < cols_; begin += kGptqBlockColumns) {
    ops_.sweep_block(
        {q, begin, weights, upper.data, order_.as<std::int32_t>(), negated_.as<double>()});
    const std::int64_t end = begin + kGptqBlockColumns;
    if (end == cols_) break;
    ops_.add_product({{weights + end, q.rows, cols_ - end, cols_},
                      {negated_.as<double>(), q.rows, kGptqBlockColumns, kGptqBlockColumns},
                      {upper.row(begin) + end, kGptqBlockColumns, cols_ - end, cols_}});
  }
}

// left_ and right_ as measure() leaves them: the residual, and its product with H.
void GptqOnDevice::descend(const Int4Rows& q, bool fits_scales) {
  const MatrixView<const double> h = square(h_);
  for (std::int64_t begin = 0; begin < cols_; begin += kGptqBlockColumns) {
    ops_.descend_block({q, begin, fits_scales, h.data, ridge_, left_.as<double>(),
                        right_.as<double>(), negated_.as<double>()});
    ops_.add_product({{right_.as<double>(), q.rows, cols_, cols_},
                      {negated_.as<double>(), q.rows, kGptqBlockColumns, kGptqBlockColumns},
                      {h.row(begin), kGptqBlockColumns, cols_, cols_}});
  }
}

void GptqOnDevice::refuse_bad_weight(const std::string& name, std::int64_t first) {
  std::uint64_t first_bad = 0;
  backend_.download(std::as_writable_bytes(std::span(&first_bad, 1)), first_bad_.as<void>());
  if (first_bad == kNoneBad) return;
  float value = 0;
  backend_.download(std::as_writable_bytes(std::span(&value, 1)), target_.as<float>() + first_bad);
  const auto index = static_cast<std::int64_t>(first_bad);
  throw_no_int4_scale(name, first + index / cols_, index % cols_, value);
}

// Of rows [first, first + q.rows), whose target is there.
void GptqOnDevice::quantize_slab(const std::string& name, std::int64_t first, const Int4Rows& q,
                                 Losses& sums) {
  ops_.gather_columns({q.rows, cols_, target_.as<float>(), nullptr, nullptr, left_.as<double>()});
  multiply(left_.as<double>(), h_.as<double>(), right_.as<double>(), q.rows);
  ops_.row_dots({q.rows, cols_, left_.as<double>(), right_.as<double>(), energies_.as<double>()});
  const Int4Rows rounded = {q.rows, cols_, q.group_size, codes_.as<std::int8_t>(),
                            scales_.as<std::uint16_t>()};
  upload_values(backend_, first_bad_, std::vector<std::uint64_t>{kNoneBad});
  backend_.offline_ops()->round_to_int4({{target_.as<float>(), q.rows, cols_, cols_},
                                         importance(),
                                         q.group_size,
                                         true,
                                         rounded.codes,
                                         rounded.scales,
                                         first_bad_.as<std::uint64_t>()});
  refuse_bad_weight(name, first);
  measure(rounded, rounded_losses_);
  const auto* rounded_losses = rounded_losses_.as<double>();
  ops_.keep_better({q, rounded, rounded_losses, rounded_losses});  // all of them, to begin with
  if (factor_.usable) {
    sweep(q);
    measure(q, losses_);
    if (options_.descent_rounds > 0) {
      for (int round = 0; round < options_.descent_rounds; ++round) {
        descend(q, false);
        descend(q, true);
      }
      descend(q, false);
      ops_.row_dots({q.rows, cols_, left_.as<double>(), right_.as<double>(), losses_.as<double>()});
    }
    ops_.keep_better({q, rounded, losses_.as<double>(), rounded_losses});
  }
  const std::vector<double> energies = numbers(energies_, q.rows);
  const std::vector<double> of_rounded = numbers(rounded_losses_, q.rows);
  const std::vector<double> found = factor_.usable ? numbers(losses_, q.rows) : of_rounded;
  for (std::size_t r = 0; r < energies.size(); ++r) {
    sums.energy += energies[r];
    sums.rounded += of_rounded[r];
    sums.kept += std::min(found[r], of_rounded[r]);
  }
}

MatrixReport GptqOnDevice::quantize(const std::string& name, MatrixView<const float> w,
                                    const Int4Rows& q, std::int64_t slab_rows) {
  FUT_CHECK(w.cols == cols_ && q.cols == cols_ && q.rows == w.rows && has_sums_,
            "{}: {} x {} into {} x {}, moments of {}", name, w.rows, w.cols, q.rows, q.cols, cols_);
  FUT_CHECK(slab_rows > 0 && slab_rows <= gptq_slab_rows(cols_), "{} rows at once", slab_rows);
  factor_ = factor(name);
  Losses sums;
  for (std::int64_t first = 0; first < w.rows; first += slab_rows) {
    if (tick_) tick_();
    Int4Rows slab = q;
    slab.rows = std::min(slab_rows, w.rows - first);
    slab.codes += first * cols_;
    slab.scales += first * (cols_ / q.group_size);
    aim(w.row(first), slab.rows);
    quantize_slab(name, first, slab, sums);
  }
  MatrixReport report;
  report.name = name;
  report.note = note_of(factor_);
  if (sums.energy > 0) {
    report.relative_loss = sums.kept / sums.energy;
    report.rtn_loss = sums.rounded / sums.energy;
  }
  return report;
}

}  // namespace fut
