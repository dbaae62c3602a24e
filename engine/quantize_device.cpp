// One matrix after the other; what one needs beside its weights, the next takes over.
#include "engine/quantize_device.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/quantize_gptq.h"
#include "engine/upload.h"

namespace fut {
namespace {

template <class T>
DeviceBuffer allocate_for(Backend& backend, std::int64_t count) {
  return backend.allocate(static_cast<std::size_t>(count) * sizeof(T));
}

template <class T>
void download(Backend& backend, std::vector<T>& values, std::int64_t count, const void* source) {
  values.resize(static_cast<std::size_t>(count));
  backend.download(std::as_writable_bytes(std::span(values)), source);
}

// The largest of what the matrices of a layer ask for.
template <class Count>
std::int64_t most(const ModelConfig& config, const Count& count) {
  std::int64_t most = 0;
  for (int m = 0; m < kNumPackedMatrices; ++m) {
    most = std::max<std::int64_t>(most,
                                  count(packed_matrix_shape(config, static_cast<PackedMatrix>(m))));
  }
  return most;
}

std::size_t longest(const CalibrationWindows& windows) {
  std::size_t most = 0;
  for (const auto& window : windows) most = std::max(most, window.size());
  return most;
}

}  // namespace

// ---- sums ---------------------------------------------------------------------------------------

DeviceSums::DeviceSums(Backend& backend, const ModelConfig& config) : backend_(backend) {
  const std::int64_t q = std::int64_t{config.num_q_heads} * config.head_dim;
  const std::int64_t kv = std::int64_t{config.num_kv_heads} * config.head_dim;
  const auto add_part = [&](ColumnSums LayerSums::*member, std::int64_t cols) {
    parts_.push_back({member, columns_, cols});
    columns_ += cols;
  };
  add_part(&LayerSums::qkv_input, config.hidden_size);
  add_part(&LayerSums::query, q);
  add_part(&LayerSums::key, kv);
  add_part(&LayerSums::value, kv);
  add_part(&LayerSums::o_input, q);
  add_part(&LayerSums::gate_up_input, config.hidden_size);
  add_part(&LayerSums::swiglu, config.intermediate_size);
  squares_ = allocate_for<double>(backend, columns_);
  largest_ = allocate_for<float>(backend, columns_);
}

void DeviceSums::clear() {
  upload_values(backend_, squares_, std::vector<double>(static_cast<std::size_t>(columns_)));
  upload_values(backend_, largest_, std::vector<float>(static_cast<std::size_t>(columns_)));
}

void DeviceSums::add(ColumnSums LayerSums::*member, ConstActivationView x) {
  const auto part = std::ranges::find(parts_, member, &Part::member);
  FUT_CHECK(part->cols == x.cols, "{} columns of {}", x.cols, part->cols);
  backend_.offline_ops()->column_sums(
      {x, squares_.as<double>() + part->begin, largest_.as<float>() + part->begin});
}

LayerSums DeviceSums::download(std::int64_t tokens) const {
  std::vector<double> squares;
  std::vector<float> largest;
  fut::download(backend_, squares, columns_, squares_.as<void>());
  fut::download(backend_, largest, columns_, largest_.as<void>());
  LayerSums sums;
  for (const Part& part : parts_) {
    ColumnSums& of_part = sums.*part.member;
    of_part.squares.assign(squares.begin() + part.begin, squares.begin() + part.begin + part.cols);
    of_part.amax.assign(largest.begin() + part.begin, largest.begin() + part.begin + part.cols);
    of_part.tokens = tokens;
  }
  return sums;
}

// ---- a layer ------------------------------------------------------------------------------------

DeviceQuantizer::DeviceQuantizer(Backend& backend, const WeightTransforms& weights,
                                 const ModelConfig& config, const PackedOptions& options,
                                 const CalibrationWindows& windows, std::function<void()> tick,
                                 const CalibrationWindows& gptq_windows)
    : backend_(backend),
      ops_(*backend.offline_ops()),
      config_(config),
      options_(options),
      parallel_for_(weights.parallel_for()),
      runner_(backend, config, static_cast<int>(std::max(longest(windows), longest(gptq_windows))),
              tick, DType::BF16),
      hidden_(backend, weights, windows, DType::BF16),
      sums_(backend, config),
      tokens_(count_tokens(windows)) {
  for (int m = 0; m < kNumPackedMatrices; ++m) {
    const PackedMatrixShape shape = packed_matrix_shape(config, static_cast<PackedMatrix>(m));
    weights_[static_cast<std::size_t>(m)] =
        allocate_for<float>(backend, std::int64_t{shape.rows} * shape.cols);
  }
  using Shape = PackedMatrixShape;
  const std::int64_t most_weights =
      most(config, [](const Shape& s) { return std::int64_t{s.rows} * s.cols; });
  const std::int64_t most_packed =
      most(config, [&](const Shape& s) { return s.tile(options.group_size).bytes(); });
  const std::int64_t most_rows = most(config, [](const Shape& s) { return s.rows; });
  const std::int64_t most_cols = most(config, [](const Shape& s) { return s.cols; });
  codes_ = allocate_for<std::uint8_t>(backend, most_weights);
  scales_ = allocate_for<std::uint16_t>(backend, most_weights / options.group_size);
  packed_ = allocate_for<std::uint8_t>(backend, most_packed);
  row_numbers_ = allocate_for<double>(backend, most_rows);
  row_energies_ = allocate_for<double>(backend, most_rows);
  importance_ = allocate_for<float>(backend, most_cols);
  exponents_ = allocate_for<std::int32_t>(backend, std::max(most_rows, most_cols));
  first_bad_ = allocate_for<std::uint64_t>(backend, 1);
  if (gptq_windows.empty()) return;
  gptq_ = std::make_unique<DeviceGptq>(backend, weights, config, gptq_options(options), runner_,
                                       gptq_windows, std::move(tick));
}

std::vector<HiddenStates*> DeviceQuantizer::hidden() {
  std::vector<HiddenStates*> all = {&hidden_};
  if (gptq_ != nullptr) all.insert(all.end(), {gptq_->hidden()[0], gptq_->hidden()[1]});
  return all;
}

MatrixView<float> DeviceQuantizer::matrix(PackedMatrix which) const {
  const PackedMatrixShape shape = packed_matrix_shape(config_, which);
  return {weights_[static_cast<std::size_t>(which)].as<float>(), shape.rows, shape.cols,
          shape.cols};
}

void DeviceQuantizer::load(const TransformedLayer& w) {
  const auto load_matrix = [&](PackedMatrix which, std::initializer_list<const HostMatrix*> parts) {
    const DeviceBuffer& buffer = weights_[static_cast<std::size_t>(which)];
    std::size_t first = 0;
    for (const HostMatrix* part : parts) {
      upload_values(backend_, buffer, part->values, first);
      first += part->values.size();
    }
    FUT_CHECK(first * sizeof(float) == buffer.bytes(), "{} weights for {} bytes", first,
              buffer.bytes());
  };
  load_matrix(PackedMatrix::QkvProj, {&w.q_proj, &w.k_proj, &w.v_proj});
  load_matrix(PackedMatrix::OProj, {&w.o_proj});
  load_matrix(PackedMatrix::GateUpProj, {&w.gate_proj, &w.up_proj});
  load_matrix(PackedMatrix::DownProj, {&w.down_proj});
  round_for_runner();
}

// Ops take weights for what nobody writes, and read them ahead of their turn.
void DeviceQuantizer::round_for_runner() {
  for (int m = 0; m < kNumPackedMatrices; ++m) {
    const auto which = static_cast<PackedMatrix>(m);
    runner_.set_rounded(which, matrix(which).data);
  }
  backend_.synchronize();
}

LayerSums DeviceQuantizer::calibrate() {
  sums_.clear();
  for (std::int64_t i = 0; i < hidden_.num_windows(); ++i) {
    const ActivationView x = hidden_.window(i);
    sums_.add(&LayerSums::qkv_input, runner_.normalise(x));
    runner_.attend(x);
    runner_.project_keys_and_values(x);
    sums_.add(&LayerSums::query, runner_.query_view());
    sums_.add(&LayerSums::key, runner_.key_view());
    sums_.add(&LayerSums::value, runner_.value_view());
    sums_.add(&LayerSums::o_input, runner_.attention_view());
    runner_.add_attention(x);
    sums_.add(&LayerSums::gate_up_input, runner_.normalise(x));
    runner_.feed(x);
    sums_.add(&LayerSums::swiglu, runner_.swiglu_view());
    runner_.add_feed(x);
  }
  return sums_.download(tokens_);
}

// Exponents as choose_exponents gives them leave every weight in the normal range.
void DeviceQuantizer::shift(const LayerExponents& exponents) {
  if (!exponents.qk.empty()) {
    std::vector<std::int32_t> rows = qk_row_exponents(attention_shape(config_), exponents.qk);
    rows.resize(static_cast<std::size_t>(matrix(PackedMatrix::QkvProj).rows));  // values stay
    shift(PackedMatrix::QkvProj, rows, false);
  }
  if (exponents.up_down.empty()) return;
  std::vector<std::int32_t> rows(exponents.up_down.size());  // gates stay
  rows.insert(rows.end(), exponents.up_down.begin(), exponents.up_down.end());
  shift(PackedMatrix::GateUpProj, rows, false);
  shift(PackedMatrix::DownProj, {exponents.up_down.begin(), exponents.up_down.end()}, true);
}

void DeviceQuantizer::shift(PackedMatrix which, const std::vector<std::int32_t>& exponents,
                            bool of_columns) {
  upload_values(backend_, exponents_, exponents);
  const auto* on_device = exponents_.as<std::int32_t>();
  ops_.shift({matrix(which), of_columns ? nullptr : on_device, of_columns ? on_device : nullptr});
}

void DeviceQuantizer::refuse_bad_weight(const PackedMatrixShape& shape, const std::string& name,
                                        const float* weights) const {
  std::vector<std::uint64_t> first_bad;
  download(backend_, first_bad, 1, first_bad_.as<void>());
  if (first_bad[0] == std::numeric_limits<std::uint64_t>::max()) return;
  std::vector<float> value;
  download(backend_, value, 1, weights + first_bad[0]);
  const auto index = static_cast<std::int64_t>(first_bad[0]);
  throw_no_int4_scale(name, index / shape.cols, index % shape.cols, value[0]);
}

void DeviceQuantizer::round(PackedMatrix which, const std::string& name,
                            std::span<const float> importance) {
  const MatrixView<float> w = matrix(which);
  check_importance(name, w.cols, importance);
  upload_values(backend_, importance_, std::vector<float>(importance.begin(), importance.end()));
  upload_values(backend_, first_bad_,
                std::vector<std::uint64_t>{std::numeric_limits<std::uint64_t>::max()});
  ops_.round_to_int4({{w.data, w.rows, w.cols, w.row_stride},
                      importance_.as<float>(),
                      options_.group_size,
                      options_.scale_rule == ScaleRule::Searched,
                      codes_.as<std::int8_t>(),
                      scales_.as<std::uint16_t>(),
                      first_bad_.as<std::uint64_t>()});
  refuse_bad_weight(packed_matrix_shape(config_, which), name, w.data);
}

MatrixReport DeviceQuantizer::quantize(PackedMatrix which, std::span<const float> importance,
                                       PackedMatrixBytes& out) {
  MatrixReport report;
  report.name = packed_matrix_name(next_layer_, which);
  const PackedMatrixShape shape = packed_matrix_shape(config_, which);
  const MatrixView<float> w = matrix(which);
  const MatrixView<const float> read = {w.data, w.rows, w.cols, w.row_stride};
  auto* codes = codes_.as<std::int8_t>();
  auto* scales = scales_.as<std::uint16_t>();
  const auto* weight = importance_.as<float>();
  if (gptq_ != nullptr) {
    report = gptq_->quantize(which, report.name, read,
                             {w.rows, w.cols, options_.group_size, codes, scales});
    weight = gptq_->importance();
  } else {
    round(which, report.name, importance);
  }
  ops_.weighted_errors({read, weight, options_.group_size, codes, scales, row_numbers_.as<double>(),
                        row_energies_.as<double>()});
  const layout::Int4Tile tile = shape.tile(options_.group_size);
  ops_.pack_int4({codes, scales, shape.order, tile, packed_.as<std::uint8_t>()});
  std::vector<double> errors, energies;
  download(backend_, errors, shape.rows, row_numbers_.as<void>());
  download(backend_, energies, shape.rows, row_energies_.as<void>());
  download(backend_, out.int4, tile.bytes(), packed_.as<void>());
  const double energy = std::accumulate(energies.begin(), energies.end(), 0.0);
  report.relative_error =
      energy > 0 ? std::accumulate(errors.begin(), errors.end(), 0.0) / energy : 0;
  return report;
}

void DeviceQuantizer::pack_fp8(PackedMatrix which, const LayerStatistics& statistics,
                               PackedMatrixBytes& out) {
  const MatrixView<float> w = matrix(which);
  PackE4m3Args args;
  args.w = {w.data, w.rows, w.cols, w.row_stride};
  if (which == PackedMatrix::OProj) {
    upload_values(backend_, importance_, attention_output_scales(statistics));
    args.divisors = importance_.as<float>();
    args.columns_per_divisor = w.cols / config_.num_kv_heads;
  }
  args.codes = codes_.as<std::uint8_t>();
  args.scales = row_numbers_.as<float>();
  ops_.pack_e4m3(args);
  download(backend_, out.e4m3, w.rows * w.cols, args.codes);
  download(backend_, out.e4m3_scales, w.rows, args.scales);
}

DeviceQuantizer::Reports DeviceQuantizer::next(
    const TransformedLayer& w, PackedLayer& out,
    const std::function<void(std::uint64_t weights)>& done) {
  FUT_CHECK(next_layer_ < config_.num_layers, "layer {} of {}", next_layer_, config_.num_layers);
  load(w);
  LayerSums sums = calibrate();
  require_finite(next_layer_, sums);
  const LayerExponents exponents = choose_exponents(config_, options_, w, sums, parallel_for_);
  shift(exponents);
  if (gptq_ != nullptr) round_for_runner();
  sums.scale(exponents);
  LayerStatistics& statistics = out.statistics = statistics_of(sums, config_.num_kv_heads);
  const std::array<std::span<const float>, kNumPackedMatrices> importances = {
      statistics.qkv_input, statistics.o_input, statistics.gate_up_input, statistics.down_input};
  Reports reports;
  for (std::size_t m = 0; m < importances.size(); ++m) {
    const auto which = static_cast<PackedMatrix>(m);
    reports[m] = quantize(which, importances[m], out.matrices[m]);
    pack_fp8(which, statistics, out.matrices[m]);
    if (done) done(out.matrices[m].e4m3.size());
  }
  ++next_layer_;
  return reports;
}

}  // namespace fut
