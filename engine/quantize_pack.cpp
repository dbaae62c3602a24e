// Embedding and head go through a few thousand rows at a time, a layer as a whole.
#include "engine/quantize_pack.h"

#include <algorithm>

#include "kernels/numeric/activation_scales.h"
#include "kernels/numeric/formats.h"
#include "loader/packers.h"

namespace fut {
namespace {

constexpr std::int64_t kRowsAtOnce = 4096;

// o_proj for inputs that were multiplied by their KV head's scale: exact, scales are powers of two.
HostMatrix divide_columns(const HostMatrix& o_proj, std::span<const float> scales) {
  HostMatrix out = o_proj;
  const std::int64_t columns_per_scale = out.cols / std::ssize(scales);
  for (std::int64_t r = 0; r < out.rows; ++r) {
    for (std::int64_t c = 0; c < out.cols; ++c) {
      out.row(r)[c] /= scales[static_cast<std::size_t>(c / columns_per_scale)];
    }
  }
  return out;
}

}  // namespace

std::vector<float> attention_output_scales(const LayerStatistics& statistics) {
  std::vector<float> scales;
  for (const float amax : statistics.value_amax) scales.push_back(attention_output_scale(amax));
  return scales;
}

PackedLayer pack_layer(const ModelConfig& config, const StackedLayer& layer,
                       const QuantizedLayer& quantized, const LayerStatistics& statistics,
                       const ParallelFor& parallel_for) {
  PackedLayer out;
  for (std::size_t m = 0; m < layer.size(); ++m) {
    const auto which = static_cast<PackedMatrix>(m);
    const layout::RowOrder order = packed_matrix_shape(config, which).order;
    PackedE4m3 e4m3 =
        which == PackedMatrix::OProj
            ? pack_e4m3(divide_columns(layer[m], attention_output_scales(statistics)), parallel_for)
            : pack_e4m3(layer[m], parallel_for);
    out.matrices[m] = {pack_int4(quantized.matrices[m], order, parallel_for), std::move(e4m3.codes),
                       std::move(e4m3.scales)};
  }
  out.statistics = statistics;
  return out;
}

TensorPacker::TensorPacker(PackedWriter& writer, const WeightTransforms& weights,
                           const ModelConfig& config, int group_size, ParallelFor parallel_for)
    : writer_(writer),
      weights_(weights),
      config_(config),
      group_size_(group_size),
      parallel_for_(std::move(parallel_for)) {}

template <class T>
void TensorPacker::append(const std::string& tensor, const std::vector<T>& values) {
  writer_.append(tensor, std::as_bytes(std::span(values)));
}

template <class Body>
void TensorPacker::for_rows(const Body& body) const {
  for (std::int64_t begin = 0; begin < config_.vocab_size; begin += kRowsAtOnce) {
    body(begin, std::min<std::int64_t>(kRowsAtOnce, config_.vocab_size - begin));
  }
}

std::string TensorPacker::name(int layer, PackedLayerTensor which) const {
  return packed_layer_tensor(config_, group_size_, layer, which).name;
}

void TensorPacker::append_embedding(const RowsDone& done) {
  const std::string tensor = packed_global_tensor(config_, PackedGlobalTensor::EmbedTokens).name;
  for_rows([&](std::int64_t begin, std::int64_t count) {
    const HostMatrix rows = weights_.embedding(begin, count);
    append_rows(tensor, rows);
    if (done) done(rows);
  });
}

// Rounded to BF16.
void TensorPacker::append_rows(const std::string& tensor, const HostMatrix& rows) {
  std::vector<std::uint16_t> bits(rows.values.size());
  run_parallel(parallel_for_, std::ssize(bits), [&](std::int64_t begin, std::int64_t end) {
    std::transform(rows.values.begin() + begin, rows.values.begin() + end, bits.begin() + begin,
                   f32_to_bf16);
  });
  append(tensor, bits);
}

void TensorPacker::append_layer(int index, const PackedLayer& layer, const SavedState& state) {
  const LayerStatistics& statistics = layer.statistics;
  for (std::size_t m = 0; m < layer.matrices.size(); ++m) {
    const auto which = static_cast<PackedMatrix>(m);
    const PackedMatrixBytes& matrix = layer.matrices[m];
    append(name(index, packed_part(which, PackedPart::Int4)), matrix.int4);
    append(name(index, packed_part(which, PackedPart::E4m3)), matrix.e4m3);
    append(name(index, packed_part(which, PackedPart::E4m3Scale)), matrix.e4m3_scales);
  }
  const std::vector<float> h_scale = {
      swiglu_output_scale(statistics.swiglu_rms, statistics.swiglu_amax)};
  const std::vector<float> swiglu = {statistics.swiglu_rms, statistics.swiglu_amax};
  append(name(index, PackedLayerTensor::AttentionOutputScale), attention_output_scales(statistics));
  append(name(index, PackedLayerTensor::SwigluOutputScale), h_scale);
  append(name(index, PackedLayerTensor::StatsQkvInput), statistics.qkv_input);
  append(name(index, PackedLayerTensor::StatsOInput), statistics.o_input);
  append(name(index, PackedLayerTensor::StatsGateUpInput), statistics.gate_up_input);
  append(name(index, PackedLayerTensor::StatsDownInput), statistics.down_input);
  append(name(index, PackedLayerTensor::StatsSwiglu), swiglu);
  append(name(index, PackedLayerTensor::StatsValueAmax), statistics.value_amax);
  if (!state.empty()) writer_.save_progress(state);
}

void TensorPacker::append_head(const RowsDone& done) {
  const auto tensor = [&](PackedGlobalTensor which) {
    return packed_global_tensor(config_, which).name;
  };
  std::vector<float> scales;
  for_rows([&](std::int64_t begin, std::int64_t count) {
    const HostMatrix rows = weights_.head(begin, count);
    const PackedInt8 int8 = pack_int8(rows, parallel_for_);
    append(tensor(PackedGlobalTensor::LmHeadInt8), int8.codes);
    scales.insert(scales.end(), int8.scales.begin(), int8.scales.end());
    if (done) done(rows);
  });
  append(tensor(PackedGlobalTensor::LmHeadInt8Scale), scales);
  for_rows([&](std::int64_t begin, std::int64_t count) {
    append_rows(tensor(PackedGlobalTensor::LmHead), weights_.head(begin, count));
  });
}

}  // namespace fut
