// A few rows at a time where a matrix is as long as the vocabulary; a layer as a whole.
#include "engine/quantize_weights.h"

#include <algorithm>
#include <cmath>

#include "engine/widen.h"

namespace fut {
namespace {

constexpr std::int64_t kRowsAtOnce = 32;  // of one read

// Of row `row` of the whole tensor.
void require_finite(const std::string& name, std::int64_t row, std::span<const float> values) {
  const auto bad = std::ranges::find_if_not(values, [](float v) { return std::isfinite(v); });
  if (bad == values.end()) return;
  throw data_error(
      "tensor {}: row {}, column {} is {}: the file is damaged or was written by a failed run; "
      "download or convert it again",
      name, row, bad - values.begin(), *bad);
}

const Safetensors& file_of(const Checkpoint& checkpoint, const TensorInfo& info) {
  const auto& files = checkpoint.files();
  const auto found = std::ranges::find_if(
      files, [&](const Safetensors& file) { return file.find(info.name) == &info; });
  FUT_CHECK(found != files.end(), "tensor {} is in none of {} files", info.name, files.size());
  return *found;
}

// `part` below `w`; frees it.
void append_rows(HostMatrix& w, HostMatrix& part) {
  FUT_CHECK(w.cols == part.cols, "{} columns of {} below {} of {}", part.cols, part.name, w.cols,
            w.name);
  w.values.insert(w.values.end(), part.values.begin(), part.values.end());
  w.rows += part.rows;
  part = {};
}

}  // namespace

WeightTransforms::WeightTransforms(const Checkpoint& checkpoint, const ModelConfig& config,
                                   const PackedOptions& options, ParallelFor parallel_for)
    : checkpoint_(checkpoint),
      kv_rotation_(options.kv_rotation),
      parallel_for_(std::move(parallel_for)),
      head_rotation_(config.head_dim, options.rotation_seed + 1),
      final_gain_(gain(checkpoint.global(GlobalTensor::FinalNorm))) {
  if (options.rotate) hidden_rotation_.emplace(config.hidden_size, options.rotation_seed);
}

void WeightTransforms::read_rows(const TensorInfo& info, std::int64_t begin, std::int64_t count,
                                 HostMatrix& into) const {
  into.name = info.name;
  into.rows = count;
  into.cols = info.shape[1];
  into.values.resize(static_cast<std::size_t>(count * into.cols));
  const Safetensors& file = file_of(checkpoint_, info);
  const auto row_values = static_cast<std::size_t>(into.cols);
  const std::size_t row_bytes = row_values * static_cast<std::size_t>(dtype_bytes(info.dtype));
  run_parallel(parallel_for_, count, [&](std::int64_t first, std::int64_t end) {
    std::vector<std::byte> piece;
    for (std::int64_t r = first; r < end; r += kRowsAtOnce) {
      const auto rows = static_cast<std::size_t>(std::min(kRowsAtOnce, end - r));
      piece.resize(rows * row_bytes);
      file.read_part(info, static_cast<std::size_t>(begin + r) * row_bytes, piece);
      widen(info.dtype, piece, {into.row(r), rows * row_values});
      for (std::size_t i = 0; i < rows; ++i) {
        const auto row = r + static_cast<std::int64_t>(i);
        require_finite(info.name, begin + row, {into.row(row), row_values});
      }
    }
  });
}

HostMatrix WeightTransforms::rows(const TensorInfo& info, std::int64_t begin,
                                  std::int64_t count) const {
  HostMatrix w;
  read_rows(info, begin, count, w);
  return w;
}

std::vector<float> WeightTransforms::gain(const TensorInfo& info) const {
  std::vector<std::byte> bytes(info.bytes);
  checkpoint_.read(info, bytes);
  HostMatrix values(info.name, 1, info.shape[0]);
  widen(info.dtype, bytes, values.values);
  require_finite(info.name, 0, values.values);
  return std::move(values.values);
}

void WeightTransforms::rotate_reader(HostMatrix& w) const {
  if (hidden_rotation_) rotate_inputs(w, *hidden_rotation_, parallel_for_);
}

TransformedLayer WeightTransforms::layer(int index) const {
  TransformedLayer layer;
  read_layer(index, layer);
  return layer;
}

void WeightTransforms::read_layer(int index, TransformedLayer& layer) const {
  const auto tensor = [&](LayerTensor which) -> const TensorInfo& {
    return checkpoint_.layer(index, which);
  };
  const auto read = [&](LayerTensor which, HostMatrix& w) {
    const TensorInfo& info = tensor(which);
    read_rows(info, 0, info.shape[0], w);
  };
  read(LayerTensor::QProj, layer.q_proj);
  read(LayerTensor::KProj, layer.k_proj);
  read(LayerTensor::VProj, layer.v_proj);
  read(LayerTensor::OProj, layer.o_proj);
  read(LayerTensor::GateProj, layer.gate_proj);
  read(LayerTensor::UpProj, layer.up_proj);
  read(LayerTensor::DownProj, layer.down_proj);
  const std::vector<float> input_gain = gain(tensor(LayerTensor::InputLayernorm));
  for (HostMatrix* w : {&layer.q_proj, &layer.k_proj, &layer.v_proj}) {
    fold_gain(*w, input_gain, parallel_for_);
    rotate_reader(*w);
  }
  const std::vector<float> ffn_gain = gain(tensor(LayerTensor::PostAttentionLayernorm));
  for (HostMatrix* w : {&layer.gate_proj, &layer.up_proj}) {
    fold_gain(*w, ffn_gain, parallel_for_);
    rotate_reader(*w);
  }
  if (kv_rotation_) {
    rotate_outputs(layer.v_proj, head_rotation_, parallel_for_);
    rotate_inputs(layer.o_proj, head_rotation_, parallel_for_);
  }
  if (hidden_rotation_) {
    rotate_outputs(layer.o_proj, *hidden_rotation_, parallel_for_);
    rotate_outputs(layer.down_proj, *hidden_rotation_, parallel_for_);
  }
}

HostMatrix WeightTransforms::embedding(std::span<const std::int32_t> ids) const {
  const TensorInfo& info = checkpoint_.global(GlobalTensor::EmbedTokens);
  HostMatrix out(info.name, std::ssize(ids), info.shape[1]);
  for (std::int64_t r = 0; r < out.rows; ++r) {
    const std::int32_t id = ids[static_cast<std::size_t>(r)];
    FUT_CHECK(id >= 0 && id < info.shape[0], "token {} of a vocabulary of {}", id, info.shape[0]);
    std::ranges::copy(rows(info, id, 1).values, out.row(r));
  }
  rotate_reader(out);
  return out;
}

HostMatrix WeightTransforms::embedding(std::int64_t begin, std::int64_t count) const {
  HostMatrix out = rows(checkpoint_.global(GlobalTensor::EmbedTokens), begin, count);
  rotate_reader(out);
  return out;
}

HostMatrix WeightTransforms::head(std::int64_t begin, std::int64_t count) const {
  HostMatrix out = rows(checkpoint_.global(GlobalTensor::LmHead), begin, count);
  fold_gain(out, final_gain_, parallel_for_);
  rotate_reader(out);
  return out;
}

StackedLayer stack_layer(TransformedLayer layer, int index) {
  for (HostMatrix* part : {&layer.k_proj, &layer.v_proj}) append_rows(layer.q_proj, *part);
  append_rows(layer.gate_proj, layer.up_proj);
  StackedLayer stacked = {std::move(layer.q_proj), std::move(layer.o_proj),
                          std::move(layer.gate_proj), std::move(layer.down_proj)};
  for (std::size_t m = 0; m < stacked.size(); ++m) {
    stacked[m].name = packed_matrix_name(index, static_cast<PackedMatrix>(m));
  }
  return stacked;
}

}  // namespace fut
